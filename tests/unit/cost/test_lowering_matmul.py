import pytest

from breakeven.cost import Family, Kernel, lower
from breakeven.device import Precision
from breakeven.trace import Op, Settings, TensorSpec

SETTINGS = Settings()


def spec(*shape: int, dtype: str = "float32", layout: str = "contiguous") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, device="cuda:0", layout=layout)


def make_op(name: str, inputs, outputs, **attributes) -> Op:
    return Op(name=name, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes)


def only_kernel(op: Op, settings: Settings = SETTINGS) -> Kernel:
    lowering = lower(op, settings)
    assert lowering.caveat is None
    (kernel,) = lowering.kernels
    return kernel


def test_addmm_with_a_bias_vector_is_one_gemm():
    # (32, 128) x (128, 64) + (64): 2 * 32 * 128 * 64 FLOP; reads 64 + 4096 + 8192 floats.
    op = make_op("aten.addmm.default", [spec(64), spec(32, 128), spec(128, 64)], [spec(32, 64)])
    kernel = only_kernel(op)
    assert kernel.family is Family.GEMM
    assert (kernel.m, kernel.n, kernel.k, kernel.batch) == (32, 64, 128, 1)
    assert kernel.flop == 524_288
    assert kernel.read_bytes == 4 * (64 + 4096 + 8192)
    assert kernel.write_bytes == 4 * 2048
    assert kernel.precision is Precision.FP32


def test_addmm_with_a_matrix_copies_it_into_the_result_first():
    op = make_op("aten.addmm.default", [spec(32, 64), spec(32, 128), spec(128, 64)], [spec(32, 64)])
    copy, gemm = lower(op, SETTINGS).kernels
    assert (copy.family, copy.flop, copy.num_bytes) == (Family.ELEMENTWISE, 0, 2 * 4 * 2048)
    assert gemm.flop == 524_288


def test_addmm_that_ignores_its_matrix_reads_it_not():
    op = make_op(
        "aten.addmm.default",
        [spec(32, 64), spec(32, 128), spec(128, 64)],
        [spec(32, 64)],
        beta=0,
    )
    assert only_kernel(op).read_bytes == 4 * (4096 + 8192)


@pytest.mark.parametrize(
    ("dtype", "allow_tf32", "precision"),
    [
        ("float32", False, Precision.FP32),
        ("float32", True, Precision.TF32),
        ("float16", True, Precision.FP16),
        ("bfloat16", False, Precision.BF16),
        ("float64", True, Precision.FP64),
    ],
)
def test_precision_of_a_gemm(dtype, allow_tf32, precision):
    op = make_op(
        "aten.mm.default",
        [spec(4, 8, dtype=dtype), spec(8, 2, dtype=dtype)],
        [spec(4, 2, dtype=dtype)],
    )
    assert only_kernel(op, Settings(allow_tf32_matmul=allow_tf32)).precision is precision


def test_complex_multiply_add_is_eight_flop():
    c = "complex64"
    op = make_op(
        "aten.mm.default", [spec(4, 8, dtype=c), spec(8, 2, dtype=c)], [spec(4, 2, dtype=c)]
    )
    assert only_kernel(op).flop == 8 * 4 * 8 * 2


def test_bmm_is_batched():
    op = make_op("aten.bmm.default", [spec(6, 5, 7), spec(6, 7, 3)], [spec(6, 5, 3)])
    kernel = only_kernel(op)
    assert kernel.family is Family.BATCHED_GEMM
    assert (kernel.batch, kernel.m, kernel.n, kernel.k) == (6, 5, 3, 7)
    assert kernel.flop == 2 * 6 * 5 * 7 * 3


def test_baddbmm_with_beta_zero_needs_no_copy():
    inputs = [spec(6, 5, 3), spec(6, 5, 7), spec(6, 7, 3)]
    ignoring = make_op("aten.baddbmm.default", inputs, [spec(6, 5, 3)], beta=0)
    assert only_kernel(ignoring).read_bytes == 4 * 6 * (35 + 21)
    adding = make_op("aten.baddbmm.default", inputs, [spec(6, 5, 3)])
    families = [kernel.family for kernel in lower(adding, SETTINGS).kernels]
    assert families == [Family.ELEMENTWISE, Family.BATCHED_GEMM]


def test_linear_folds_leading_dimensions_into_rows():
    op = make_op(
        "aten.linear.default", [spec(2, 10, 16), spec(32, 16), spec(32)], [spec(2, 10, 32)]
    )
    kernel = only_kernel(op)
    assert (kernel.m, kernel.n, kernel.k) == (20, 32, 16)
    assert kernel.flop == 2 * 20 * 32 * 16


@pytest.mark.parametrize(
    ("name", "inputs", "output", "flop"),
    [
        ("aten.mv.default", [(5, 7), (7,)], (5,), 2 * 35),
        ("aten.dot.default", [(7,), (7,)], (), 2 * 7),
        ("aten.addmv.default", [(5,), (5, 7), (7,)], (5,), 2 * 35),
    ],
)
def test_product_with_a_vector_reduces_rows_and_has_no_tiles(name, inputs, output, flop):
    op = make_op(name, [spec(*shape) for shape in inputs], [spec(*output)])
    kernel = only_kernel(op)
    assert (kernel.family, kernel.flop) == (Family.REDUCTION, flop)
    assert kernel.num_bytes == 4 * sum(s.numel for s in (*op.inputs, *op.outputs))


def test_sum_of_products_is_one_gemm_that_contracts_the_batch_too():
    op = make_op("aten.addbmm.default", [spec(5, 3), spec(6, 5, 7), spec(6, 7, 3)], [spec(5, 3)])
    kernel = lower(op, SETTINGS).kernels[-1]
    assert (kernel.m, kernel.n, kernel.k) == (5, 3, 42)
    assert kernel.flop == 2 * 5 * 3 * 42


def test_grouped_gemm_shares_its_rows_out():
    # 48 tokens to 4 experts, each (16, 32).
    op = make_op(
        "aten._grouped_mm.default",
        [spec(48, 16), spec(4, 16, 32), spec(4, dtype="int32")],
        [spec(48, 32)],
    )
    kernel = only_kernel(op)
    assert (kernel.batch, kernel.m, kernel.n, kernel.k) == (4, 12, 32, 16)
    assert kernel.flop == 2 * 48 * 16 * 32


def test_out_argument_is_written_and_not_read():
    with_out = make_op("aten.mm.out", [spec(4, 8), spec(8, 2), spec(4, 2)], [spec(4, 2)])
    plain = make_op("aten.mm.default", [spec(4, 8), spec(8, 2)], [spec(4, 2)])
    assert lower(with_out, SETTINGS) == lower(plain, SETTINGS)


def test_expanded_input_counts_its_storage():
    # A (64, 128) gradient of a sum over the rows: stored once per column of 128.
    op = make_op("aten.mm.default", [spec(64, 128, layout="expanded"), spec(128, 8)], [spec(64, 8)])
    assert only_kernel(op).read_bytes == 4 * (64 + 128 * 8)


def test_float8_is_said_to_be_costed_as_16_bit():
    f8 = "float8_e4m3fn"
    op = make_op(
        "aten.mm.default", [spec(4, 8, dtype=f8), spec(8, 2, dtype=f8)], [spec(4, 2, dtype=f8)]
    )
    lowering = lower(op, SETTINGS)
    assert lowering.caveat is not None
    assert lowering.caveat.code == "float8-as-float16"
    assert lowering.kernels[0].precision is Precision.FP16


def product(m: int, n: int, k: int, *, dtype: str = "bfloat16", layout: str = "contiguous") -> Op:
    left = spec(m, k, dtype=dtype, layout=layout)
    right = spec(k, n, dtype=dtype)
    return make_op("aten.mm.default", [left, right], [spec(m, n, dtype=dtype)])


@pytest.mark.parametrize(
    ("op", "alignment_bytes"),
    [
        (product(4097, 768, 512), 16),  # rows of 512 and 768 numbers, however many there are
        (product(4096, 769, 512), 2),
        (product(4096, 768, 514), 4),
        (product(4096, 768, 516), 8),
        (product(4097, 768, 512, layout="transposed"), 2),  # rows of 4,097
        (product(4096, 769, 512, dtype="float32"), 4),
        (product(4096, 2, 511), 0),  # too narrow for tiles
    ],
)
def test_rows_of_a_product_start_at_multiples_of_so_many_bytes(op, alignment_bytes):
    assert only_kernel(op).alignment_bytes == alignment_bytes


def compiled(op: Op) -> tuple[Kernel, ...]:
    return lower(make_op(f"compiled.{op.name}", op.inputs, op.outputs), SETTINGS).kernels


def test_compiled_code_pads_rows_that_are_not_aligned():
    copies, gemm = compiled(product(4096, 768, 4097))
    assert (gemm.family, gemm.alignment_bytes) == (Family.GEMM, 16)
    # The left operand is read and written once; rows of the right one have 768 numbers.
    assert (copies.family, copies.read_bytes) == (Family.ELEMENTWISE, 2 * 4096 * 4097)
    assert copies.write_bytes == copies.read_bytes
    # A layer's weight is transposed, its rows are aligned; what is too much of the result, a view
    # leaves out.
    weight = spec(768, 4097, dtype="bfloat16", layout="transposed")
    layer = product(4096, 4097, 768)
    layer = make_op(layer.name, [layer.inputs[0], weight], layer.outputs)
    assert only_kernel(layer).alignment_bytes == 2
    (gemm,) = compiled(layer)
    assert gemm.alignment_bytes == 16


@pytest.mark.parametrize(
    "op",
    [
        product(4096, 4096, 768),  # aligned already
        product(197, 197, 64),  # bound by memory
        product(4096, 4097, 768, dtype="float32"),  # on plain units
    ],
)
def test_compiled_code_leaves_other_products_alone(op):
    assert compiled(op) == (only_kernel(op),)

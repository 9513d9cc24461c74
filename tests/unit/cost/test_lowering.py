import pytest

from breakeven.cost import Family, lower
from breakeven.cost.lowering import rule_of
from breakeven.device import Precision
from breakeven.trace import Op, Settings, TensorSpec

SETTINGS = Settings()


def spec(*shape: int, dtype: str = "float32", layout: str = "contiguous") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, device="cuda:0", layout=layout)


def make_op(name: str, inputs, outputs, **attributes) -> Op:
    return Op(name=name, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes)


def kernels_of(name: str, inputs, outputs, **attributes):
    lowering = lower(make_op(name, inputs, outputs, **attributes), SETTINGS)
    assert lowering.caveat is None
    return lowering.kernels


@pytest.mark.parametrize(
    "name",
    ["aten.view.default", "aten.t.default", "aten.transpose.int", "aten.expand.default",
     "aten.slice.Tensor", "aten.unsqueeze_.default", "aten._unsafe_view.default",
     "aten.split_with_sizes.default", "aten.detach.default", "aten.lift_fresh.default"],
)  # fmt: skip
def test_views_are_free(name):
    assert kernels_of(name, [spec(4, 8)], [spec(8, 4)]) == ()


@pytest.mark.parametrize(
    "name",
    ["aten.empty.memory_format", "aten.empty_like.default", "aten.resize_.default",
     "aten._local_scalar_dense.default", "aten._pin_memory.default",
     "aten.record_stream.default", "profiler._record_function_enter_new.default"],
)  # fmt: skip
def test_allocations_and_reads_run_nothing(name):
    assert kernels_of(name, [spec(4)], [spec(4)]) == ()


def test_nothing_runs_over_no_elements():
    assert kernels_of("aten.add.Tensor", [spec(0, 4), spec(0, 4)], [spec(0, 4)]) == ()


def test_an_unknown_operator_is_costed_by_its_bytes_and_said_to_be():
    lowering = lower(make_op("mylib.warp.default", [spec(8)], [spec(8)]), SETTINGS)
    (kernel,) = lowering.kernels
    assert (kernel.family, kernel.num_bytes) == (Family.ELEMENTWISE, 64)
    assert lowering.caveat is not None
    assert lowering.caveat.code == "uncosted-op"
    assert "mylib.warp.default" in lowering.caveat.message
    assert rule_of("mylib.warp.default") is None


def test_an_unknown_operator_in_place_on_a_list_still_costs():
    lowering = lower(make_op("mylib.step_.default", [spec(8), spec(8)], []), SETTINGS)
    assert lowering.kernels[0].read_bytes == 64
    assert lowering.kernels[0].flop == 8


def test_in_place_and_overloads_share_a_rule():
    plain = kernels_of("aten.add.Tensor", [spec(8), spec(8)], [spec(8)])
    assert kernels_of("aten.add_.Tensor", [spec(8), spec(8)], [spec(8)]) == plain
    (kernel,) = plain
    assert (kernel.flop, kernel.read_bytes, kernel.write_bytes) == (8, 64, 32)
    assert kernel.precision is Precision.FP32


def test_elementwise_float32_never_uses_tensor_cores():
    op = make_op("aten.mul.Tensor", [spec(8), spec(8)], [spec(8)])
    both = Settings(allow_tf32_matmul=True, allow_tf32_convolution=True)
    assert lower(op, both).kernels[0].precision is Precision.FP32


def test_a_double_scalar_does_not_make_an_operator_double():
    inputs = [spec(8, dtype="float16"), spec(dtype="float64")]
    (kernel,) = kernels_of("aten.mul.Tensor", inputs, [spec(8, dtype="float16")])
    assert kernel.precision is Precision.FP16


@pytest.mark.parametrize("name", ["aten.zero_.default", "aten.fill_.Scalar", "aten.ones.default"])
def test_fills_only_write(name):
    (kernel,) = kernels_of(name, [spec(8)], [spec(8)])
    assert (kernel.read_bytes, kernel.write_bytes) == (0, 32)


def test_copy_does_not_read_its_target():
    (kernel,) = kernels_of("aten.copy_.default", [spec(8), spec(8, dtype="float16")], [spec(8)])
    assert (kernel.read_bytes, kernel.write_bytes) == (16, 32)


def test_expanded_gradient_of_a_sum_is_nearly_free_to_read():
    (kernel,) = kernels_of(
        "aten.mul.Tensor", [spec(1024, layout="expanded"), spec(1024)], [spec(1024)]
    )
    assert kernel.read_bytes == 4 + 4096


def test_a_broadcast_input_is_read_as_often_as_it_is_used():
    scores, mask = spec(2, 4, 8, 8), spec(2, 1, 8, 8)
    (kernel,) = kernels_of("aten.add.Tensor", [scores, mask], [scores])
    assert kernel.read_bytes == 2 * 4 * 512
    (scaled,) = kernels_of("aten.mul.Tensor", [scores, spec()], [scores])
    assert scaled.read_bytes == 4 * 512 + 4


def test_masked_fill_out_of_place_copies_first():
    scores, mask = spec(4, 8), spec(1, 8, dtype="bool")
    (in_place,) = kernels_of("aten.masked_fill_.Scalar", [scores, mask], [scores])
    assert (in_place.read_bytes, in_place.write_bytes) == (128 + 32, 128)
    copied, filled = kernels_of("aten.masked_fill.Scalar", [scores, mask], [scores])
    assert (copied.read_bytes, copied.write_bytes) == (128, 128)
    assert filled == in_place


@pytest.mark.parametrize(
    ("source", "result", "variant"),
    [
        (spec(4, 8, layout="transposed"), spec(4, 8), "strided"),
        (spec(4, 8), spec(4, 8), ""),
        (spec(4, 8, layout="expanded"), spec(4, 8), ""),
    ],
)
def test_a_copy_into_another_order_is_strided(source, result, variant):
    (kernel,) = kernels_of("aten.clone.default", [source], [result])
    assert kernel.variant == variant
    (copy,) = kernels_of("aten.copy_.default", [result, source], [result])
    assert copy.variant == variant


def test_a_cast_costs_instructions_but_between_floats_of_32_and_16_bits():
    (half,) = kernels_of("aten._to_copy.default", [spec(8)], [spec(8, dtype="float16")])
    assert (half.flop, half.num_bytes) == (0, 8 * 6)
    (boolean,) = kernels_of("aten._to_copy.default", [spec(8)], [spec(8, dtype="bool")])
    assert (boolean.flop, boolean.num_bytes) == (64 * 8, 8 * 5)


def test_concatenation_takes_128_tensors_a_launch():
    (kernel,) = kernels_of("aten.cat.default", [spec(2)] * 129, [spec(258)])
    assert kernel.launches == 2
    assert kernel.num_bytes == 2 * 4 * 258


def test_gradient_of_a_slice_zeroes_then_copies():
    zero, copy = kernels_of("aten.slice_backward.default", [spec(2, 4)], [spec(8, 4)])
    assert (zero.read_bytes, zero.write_bytes) == (0, 128)
    assert (copy.read_bytes, copy.write_bytes) == (32, 32)


def test_dropout_writes_a_mask_of_one_byte():
    (kernel,) = kernels_of(
        "aten.native_dropout.default", [spec(64)], [spec(64), spec(64, dtype="bool")]
    )
    assert (kernel.read_bytes, kernel.write_bytes) == (256, 256 + 64)


def test_bilinear_upsampling_weighs_four_taps():
    (kernel,) = kernels_of("aten.upsample_bilinear2d.vec", [spec(1, 1, 4, 4)], [spec(1, 1, 8, 8)])
    assert kernel.flop == 2 * 4 * 64


def test_copies_of_views_move_bytes():
    (kernel,) = kernels_of("aten.transpose_copy.int", [spec(4, 8)], [spec(8, 4)])
    assert kernel.num_bytes == 256


BATCHED = {
    "addmm": lambda b: make_op(
        "aten.addmm.default", [spec(8), spec(b, 4), spec(4, 8)], [spec(b, 8)]
    ),
    "bmm": lambda b: make_op("aten.bmm.default", [spec(b, 3, 4), spec(b, 4, 5)], [spec(b, 3, 5)]),
    "convolution": lambda b: make_op(
        "aten.convolution.default", [spec(b, 3, 8, 8), spec(4, 3, 3, 3)], [spec(b, 4, 6, 6)]
    ),
    "relu": lambda b: make_op("aten.relu.default", [spec(b, 8)], [spec(b, 8)]),
    "sum": lambda b: make_op("aten.sum.dim_IntList", [spec(b, 8)], [spec(b)]),
    "softmax": lambda b: make_op("aten._softmax.default", [spec(b, 8)], [spec(b, 8)]),
    "layer_norm": lambda b: make_op(
        "aten.native_layer_norm.default",
        [spec(b, 8), spec(8), spec(8)],
        [spec(b, 8), spec(b, 1), spec(b, 1)],
    ),
    "pool": lambda b: make_op(
        "aten.max_pool2d_with_indices.default",
        [spec(b, 3, 8, 8)],
        [spec(b, 3, 4, 4), spec(b, 3, 4, 4, dtype="int64")],
        kernel_size=[2, 2],
    ),
    "attention": lambda b: make_op(
        "aten._scaled_dot_product_efficient_attention.default",
        [spec(b, 2, 4, 8)] * 3,
        [spec(b, 2, 4, 8)],
    ),
    "lstm": lambda b: make_op(
        "aten._cudnn_rnn.default",
        [spec(5, b, 3), spec(16, 3), spec(16, 4), spec(1, b, 4), spec(1, b, 4)],
        [spec(5, b, 4)],
        mode=2,
        hidden_size=4,
        num_layers=1,
    ),
}


@pytest.mark.parametrize("name", BATCHED)
def test_doubling_the_batch_doubles_the_flop_and_keeps_the_kernels(name):
    small = lower(BATCHED[name](16), SETTINGS).kernels
    large = lower(BATCHED[name](32), SETTINGS).kernels
    assert len(small) == len(large)
    for one, two in zip(small, large, strict=True):
        assert two.flop == 2 * one.flop > 0
        assert one.num_bytes < two.num_bytes <= 2 * one.num_bytes
        assert (two.family, two.launches, two.variant) == (one.family, one.launches, one.variant)

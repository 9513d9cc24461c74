"""Optimizers on lists of tensors, gathering, sorting, linear algebra."""

import pytest

from breakeven.cost import Family, lower
from breakeven.cost.lower_optimizer import multi_tensor_launches
from breakeven.trace import Op, Settings, TensorSpec

SETTINGS = Settings()


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, device="cuda:0")


def ints(*shape: int) -> TensorSpec:
    return spec(*shape, dtype="int64")


def kernels_of(name: str, inputs, outputs, **attributes):
    op = Op(name=name, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes)
    lowering = lower(op, SETTINGS)
    assert lowering.caveat is None
    return lowering.kernels


@pytest.mark.parametrize(
    ("numels", "num_lists", "launches"),
    [
        ([10] * 36, 4, 1),
        ([10] * 37, 4, 2),
        ([10] * 110, 1, 1),
        ([10] * 111, 1, 2),
        # 320 chunks of 65,536 elements fill a launch exactly; one element more opens another.
        ([320 * 65_536], 4, 1),
        ([320 * 65_536 + 1], 4, 2),
        # The tensor that is cut takes a place in both launches: 1 and 35, then 1 more.
        ([321 * 65_536] + [10] * 35, 4, 2),
        ([321 * 65_536] + [10] * 36, 4, 3),
        ([], 4, 0),
    ],
)
def test_launches_of_the_multi_tensor_kernel(numels, num_lists, launches):
    assert multi_tensor_launches(numels, num_lists) == launches


def test_foreach_in_place_writes_its_first_list():
    # p += a * g for 40 tensors: two lists take 64 tensors a launch.
    (kernel,) = kernels_of("aten._foreach_add_.List", [spec(100)] * 80, [])
    assert (kernel.launches, kernel.variant) == (1, "multi_tensor")
    assert kernel.flop == 4000
    assert (kernel.read_bytes, kernel.write_bytes) == (4 * 8000, 4 * 4000)


def test_foreach_out_of_place_counts_its_results_as_a_list():
    # Two lists read and one written: 48 tensors a launch.
    (kernel,) = kernels_of("aten._foreach_add.List", [spec(100)] * 98, [spec(100)] * 49)
    assert kernel.launches == 2
    assert kernel.write_bytes == 4 * 4900


def test_foreach_with_a_tensor_of_scalars():
    (kernel,) = kernels_of("aten._foreach_mul_.Tensor", [*[spec(100)] * 10, spec()], [])
    assert (kernel.flop, kernel.read_bytes, kernel.write_bytes) == (1000, 4000, 4000)


def test_foreach_of_three_lists():
    (kernel,) = kernels_of("aten._foreach_addcdiv_.ScalarList", [spec(100)] * 30, [])
    assert (kernel.flop, kernel.read_bytes, kernel.write_bytes) == (3000, 12_000, 4000)


def test_foreach_of_mixed_dtypes_goes_tensor_by_tensor():
    half = spec(100, dtype="float16")
    (kernel,) = kernels_of("aten._foreach_add_.List", [*[spec(100)] * 10, *[half] * 10], [])
    assert kernel.launches == 10


def test_foreach_zero_and_copy_read_no_target():
    (zero,) = kernels_of("aten._foreach_zero_.default", [spec(100)] * 10, [])
    assert (zero.read_bytes, zero.write_bytes) == (0, 4000)
    (copy,) = kernels_of("aten._foreach_copy_.default", [spec(100)] * 20, [])
    assert (copy.read_bytes, copy.write_bytes) == (4000, 4000)


def test_foreach_norm_reduces_twice():
    (kernel,) = kernels_of("aten._foreach_norm.Scalar", [spec(100)] * 10, [spec()] * 10)
    assert (kernel.family, kernel.launches) == (Family.REDUCTION, 3)
    assert kernel.flop == 2000


@pytest.mark.parametrize(("amsgrad", "num_lists"), [(False, 4), (True, 5)])
@pytest.mark.parametrize("num_extra", [0, 1, 3])
def test_fused_adam(amsgrad, num_lists, num_extra):
    inputs = [*[spec(100)] * (10 * num_lists), *[spec()] * 10, *[spec()] * num_extra]
    (kernel,) = kernels_of("aten._fused_adamw_.default", inputs, [], amsgrad=amsgrad)
    assert kernel.flop == 25 * 1000
    assert kernel.read_bytes == 4 * 1000 * num_lists
    assert kernel.write_bytes == 4 * 1000 * (num_lists - 1)
    assert kernel.launches == 1


@pytest.mark.parametrize(("momentum", "num_lists", "num_written"), [(0.0, 2, 1), (0.9, 3, 2)])
def test_fused_sgd(momentum, num_lists, num_written):
    inputs = [spec(100)] * (10 * num_lists)
    (kernel,) = kernels_of("aten._fused_sgd_.default", inputs, [], momentum=momentum)
    assert kernel.read_bytes == 4000 * num_lists
    assert kernel.write_bytes == 4000 * num_written


def test_grad_scaler():
    name = "aten._amp_foreach_non_finite_check_and_unscale_.default"
    (kernel,) = kernels_of(name, [*[spec(100)] * 10, spec(), spec()], [])
    assert (kernel.read_bytes, kernel.write_bytes, kernel.launches) == (4000, 4000, 1)


def test_embedding_reads_the_rows_it_looks_up():
    (kernel,) = kernels_of("aten.embedding.default", [spec(50_000, 16), ints(8)], [spec(8, 16)])
    assert kernel.family is Family.GATHER
    assert (kernel.read_bytes, kernel.write_bytes) == (64 + 512, 512)


def test_gradient_of_an_embedding_is_sorted_when_long():
    name = "aten.embedding_dense_backward.default"
    zero, add = kernels_of(name, [spec(8, 16), ints(8)], [spec(1000, 16)])
    assert (zero.write_bytes, add.family) == (64_000, Family.GATHER)
    assert add.read_bytes == 512 + 64 + 512
    _, ordered, long = kernels_of(name, [spec(4000, 16), ints(4000)], [spec(1000, 16)])
    assert (ordered.family, ordered.launches) == (Family.SORT, 11)
    # 8 passes over 64-bit keys and positions.
    assert ordered.read_bytes == 8 * 16 * 4000
    assert (long.family, long.variant) == (Family.GATHER, "scatter")
    assert long.read_bytes == 4000 * (8 + 64)


def test_indexing_with_a_mask_finds_positions_first():
    mask = spec(64, dtype="bool")
    positions, gather = kernels_of("aten.index.Tensor", [spec(64, 8), mask], [spec(20, 8)])
    assert positions.launches == 5
    assert gather.write_bytes == 4 * 160
    assert len(kernels_of("aten.index.Tensor", [spec(64, 8), ints(20)], [spec(20, 8)])) == 1


def test_index_put_in_place_writes_the_rows_alone():
    inputs = [spec(64, 8), ints(4), spec(4, 8)]
    (in_place,) = kernels_of("aten.index_put_.default", inputs, [spec(64, 8)])
    assert (in_place.read_bytes, in_place.write_bytes) == (32 + 128, 128)
    copy, _ = kernels_of("aten.index_put.default", inputs, [spec(64, 8)])
    assert copy.num_bytes == 2 * 4 * 512
    ordered, added = kernels_of("aten.index_put_.default", inputs, [spec(64, 8)], accumulate=True)
    assert (ordered.family, added.family) == (Family.SORT, Family.GATHER)


def test_index_put_of_one_value_writes_every_selected_row():
    (kernel,) = kernels_of("aten.index_put_.default", [spec(64, 8), ints(4), spec()], [spec(64, 8)])
    assert kernel.write_bytes == 128


def test_scatter_add_reads_what_it_adds_to():
    inputs = [spec(64), ints(4), spec(4)]
    (kernel,) = kernels_of("aten.scatter_add_.default", inputs, [spec(64)])
    assert (kernel.read_bytes, kernel.write_bytes, kernel.flop) == (32 + 16 + 16, 16, 4)
    assert len(kernels_of("aten.scatter_add.default", inputs, [spec(64)])) == 2


def test_short_rows_sort_in_one_launch_and_long_ones_in_passes():
    (short,) = kernels_of("aten.sort.default", [spec(8, 1024)], [spec(8, 1024), ints(8, 1024)])
    assert (short.family, short.launches) == (Family.SORT, 1)
    assert short.flop == 8 * 1024 * 10
    (long,) = kernels_of("aten.sort.default", [spec(8192)], [spec(8192), ints(8192)])
    assert long.launches == 8
    assert long.read_bytes == 4 * 8192 * 12


def test_topk_sorts_what_it_selects():
    kernels = kernels_of("aten.topk.default", [spec(8, 1024)], [spec(8, 5), ints(8, 5)], k=5)
    assert [kernel.variant for kernel in kernels] == ["select", ""]


def test_cholesky_is_a_third_of_a_cube():
    (kernel,) = kernels_of(
        "aten.linalg_cholesky_ex.default", [spec(2, 96, 96)], [spec(2, 96, 96), ints(2)]
    )
    assert kernel.family is Family.LINALG
    assert kernel.flop == pytest.approx(2 * 96**3 / 3)
    assert (kernel.batch, kernel.launches) == (2, 9)
    # Each column waits for the one before, twice.
    assert kernel.num_steps * kernel.launches == pytest.approx(2 * 96, abs=9)


def test_a_matrix_without_columns_is_factorized_too():
    (kernel,) = kernels_of("aten.linalg_qr.default", [spec(40, 0)], [spec(40, 40), spec(40, 0)])
    assert (kernel.flop, kernel.num_steps) == (0, 1)


def test_triangular_solve_counts_right_hand_sides():
    (kernel,) = kernels_of(
        "aten.linalg_solve_triangular.default", [spec(16, 16), spec(16, 5)], [spec(16, 5)]
    )
    assert kernel.flop == 16 * 16 * 5


def test_real_fourier_transform():
    (kernel,) = kernels_of(
        "aten._fft_r2c.default", [spec(4, 256)], [spec(4, 129, dtype="complex64")], dim=[1]
    )
    assert kernel.flop == 2.5 * 1024 * 8
    assert (kernel.read_bytes, kernel.write_bytes) == (4096, 8 * 4 * 129)


def test_lists_that_differ_in_shape_are_done_one_by_one():
    weights, counts = [spec(100)] * 5, [spec()] * 5
    (alike,) = kernels_of("aten._foreach_div_.List", [*weights, *weights], [])
    (one_by_one,) = kernels_of("aten._foreach_div_.List", [*weights, *counts], [])
    assert (alike.launches, one_by_one.launches) == (1, 5)

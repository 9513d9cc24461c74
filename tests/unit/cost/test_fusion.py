"""Kernels of compiled graphs: what is fused, and what crosses the borders, worked out by hand."""

from __future__ import annotations

import pytest

from breakeven.cost import fuse, lower
from breakeven.cost.fusion import FusedKernel, FusedStep
from breakeven.trace import Event, Op, Phase, Settings, Sync, TensorSpec

N = 1024
FULL, ROWS = (64, N), (64, 1)


def spec(storage: int, *shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape=shape or FULL, dtype=dtype, device="cuda:0", storage=storage)


def run(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], **attributes: object) -> Op:
    return Op(
        name=f"aten.{name}", inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes
    )


def fused(*events: Event, regions: list[int] | None = None) -> FusedStep:
    lowerings = [lower(e, Settings()) if isinstance(e, Op) else None for e in events]
    return fuse(events, lowerings, regions or [0] * len(events))


def storages(specs: tuple[TensorSpec, ...]) -> list[int]:
    return sorted(spec.storage for spec in specs)


def test_a_chain_of_pointwise_operators_is_one_kernel_that_moves_its_ends_alone() -> None:
    step = fused(
        run("mul.Tensor", [spec(0), spec(1)], [spec(2)]),
        run("add.Tensor", [spec(2), spec(1)], [spec(3)]),
        run("relu_.default", [spec(3)], [spec(3)]),
    )

    (kernel,) = step.kernels
    assert kernel.positions == (0, 1, 2)
    assert storages(kernel.reads) == [0, 1]
    assert [(s.storage, s.num_bytes) for s in kernel.writes] == [(3, 64 * N * 4)]


@pytest.mark.parametrize(
    ("dims", "is_channels_last", "is_kept"),
    [([2, 3], False, True), ([2, 3], True, False), ([1], False, False), ([1], True, True)],
)
def test_what_is_reduced_is_at_hand_where_it_lies_together(dims, is_channels_last, is_kept) -> None:
    kept = [1 if dim in dims else size for dim, size in enumerate((8, 196, 14, 14))]
    mean = run("mean.dim", [spec(0, 8, 196, 14, 14)], [spec(1, *kept)], dim=dims)
    step = fuse([mean], [lower(mean, Settings())], [0], is_channels_last=is_channels_last)

    assert step.kernels[0].keeps_row is is_kept


def test_what_a_library_call_needs_is_written_for_it() -> None:
    product = run("mm.default", [spec(1), spec(5, N, N)], [spec(2)])
    step = fused(
        run("relu.default", [spec(0)], [spec(1)]),
        product,
        run("add.Tensor", [spec(1), spec(2)], [spec(3)]),
    )

    assert step.library_calls == {1}
    # The addition cannot join: it waits for the product, which waits for what it would join.
    assert [kernel.positions for kernel in step.kernels] == [(0,), (2,)]
    assert storages(step.kernels[0].writes) == [1]


def test_rows_are_reduced_and_written_in_one_kernel() -> None:
    """A residual, its layer norm and a cast, as in every transformer."""
    norm = run(
        "native_layer_norm.default",
        [spec(2), spec(3, N), spec(4, N)],
        [spec(5), spec(6, *ROWS), spec(7, *ROWS)],
    )
    step = fused(
        run("add.Tensor", [spec(0), spec(1)], [spec(2)]),
        norm,
        run("_to_copy.default", [spec(5)], [spec(8, *FULL, dtype="float16")]),
    )

    (kernel,) = step.kernels
    assert (kernel.numel, kernel.rows) == (64 * N, 64)
    assert storages(kernel.reads) == [0, 1, 3, 4]
    assert storages(kernel.writes) == [8]


def test_statistics_of_a_batch_are_a_kernel_of_their_own() -> None:
    images = (8, 16, 32, 32)
    norm = run(
        "native_batch_norm.default",
        [spec(0, *images), spec(1, 16), spec(2, 16), spec(3, 16), spec(4, 16)],
        [spec(5, *images), spec(6, 16), spec(7, 16)],
        training=True,
    )
    step = fused(norm, run("relu.default", [spec(5, *images)], [spec(8, *images)]))

    assert [kernel.positions for kernel in step.kernels] == [(0,), (0, 1)]
    statistics, applied = step.kernels
    assert (statistics.rows, applied.rows) == (16, 0)
    # The input is read twice: the statistics must be known before any of them is applied.
    assert 0 in storages(statistics.reads)
    assert 0 in storages(applied.reads)
    assert storages(applied.writes) == [8]


def test_in_evaluation_a_batch_norm_is_pointwise() -> None:
    images = (8, 16, 32, 32)
    norm = run(
        "native_batch_norm.default",
        [spec(0, *images), spec(1, 16), spec(2, 16), spec(3, 16), spec(4, 16)],
        [spec(5, *images), spec(6, 0), spec(7, 0)],
        training=False,
    )
    (kernel,) = fused(norm, run("relu.default", [spec(5, *images)], [spec(8, *images)])).kernels

    assert kernel.positions == (0, 1)


def test_a_small_pointwise_result_is_computed_where_it_is_read() -> None:
    scaled = run("mul.Tensor", [spec(0, N), spec(1, N)], [spec(2, N)])
    (kernel,) = fused(scaled, run("add.Tensor", [spec(3), spec(2, N)], [spec(4)])).kernels

    assert storages(kernel.reads) == [0, 1, 3]
    assert storages(kernel.writes) == [4]


def test_graphs_share_no_kernel_and_hand_on_through_memory() -> None:
    sums = run("sum.dim_IntList", [spec(0)], [spec(1, 64)], dim=[1])
    backward = Op(
        name="aten.mul.Tensor", inputs=(spec(1, 64),), outputs=(spec(2, 64),), phase=Phase.BACKWARD
    )
    step = fused(sums, backward, regions=[0, 1])

    assert [storages(kernel.writes) for kernel in step.kernels] == [[1], [2]]


def test_what_the_host_reads_is_written() -> None:
    events = (
        run("mul.Tensor", [spec(0)], [spec(1)]),
        run("neg.default", [spec(1)], [spec(2)]),
        Sync(kind="item", storage=1),
    )
    (kernel,) = fused(*events, regions=[0, 0, -1]).kernels

    assert storages(kernel.writes) == [1, 2]


def test_two_parts_of_a_storage_are_read_as_often_as_it_is_large() -> None:
    """The halves of a gated layer: each is read once, and no more than all of it."""
    halves = [spec(0, 32, N), spec(0, 32, N)]
    whole = run("relu.default", [spec(9)], [spec(0)])
    gate = run("gelu.default", halves[:1], [spec(1, 32, N)])
    step = fused(whole, gate, run("mul.Tensor", [halves[1], spec(1, 32, N)], [spec(2, 32, N)]))

    last = step.kernels[-1]
    assert sum(s.num_bytes for s in last.reads if s.storage == 0) == pytest.approx(64 * N * 4)


def test_an_operator_without_a_cost_of_its_own_is_left_alone() -> None:
    unknown = Op(name="mine.special.default", inputs=(spec(0),), outputs=(spec(1),))
    step = fused(unknown, run("relu.default", [spec(1)], [spec(2)]))

    assert step.library_calls == {0}
    assert [kernel.positions for kernel in step.kernels] == [(1,)]


def test_equal_casts_are_made_once() -> None:
    """Autocast casts what three products read three times."""
    casts = [
        run("_to_copy.default", [spec(0)], [spec(number, *FULL, dtype="float16")])
        for number in (1, 2, 3)
    ]
    products = [
        run(
            "mm.default", [spec(number, *FULL, dtype="float16"), spec(9, N, N)], [spec(10 + number)]
        )
        for number in (1, 2, 3)
    ]
    (kernel,) = fused(*casts, *products).kernels

    assert kernel.positions == (0,)
    assert storages(kernel.writes) == [1]


def test_a_list_of_parameters_is_updated_by_one_kernel() -> None:
    """Adam's moment and its use, over three parameters: nothing between them reaches memory."""
    gradients, moments, steps, parameters = (
        [spec(first + number, 4, N) for number in range(3)] for first in (0, 10, 20, 30)
    )
    step = fused(
        run("_foreach_lerp_.Scalar", [*moments, *gradients], []),
        run("_foreach_mul.Scalar", moments, steps),
        run("_foreach_add_.List", [*parameters, *steps], []),
    )

    (kernel,) = step.kernels
    assert kernel.numel == 3 * 4 * N
    assert storages(kernel.reads) == [0, 1, 2, 10, 11, 12, 30, 31, 32]
    assert storages(kernel.writes) == [10, 11, 12, 30, 31, 32]
    assert not step.library_calls


def test_norms_of_a_list_stay_a_call() -> None:
    norms = run("_foreach_norm.Scalar", [spec(0), spec(1)], [spec(2, 1), spec(3, 1)])

    assert fused(norms).library_calls == {0}


FORWARD, BACKWARD = 0, 1


def trained(forward: list[Op], backward: list[Op]) -> FusedStep:
    regions = [FORWARD] * len(forward) + [BACKWARD] * len(backward)
    return fused(*forward, *backward, regions=regions)


def product(left: int, result: int) -> Op:
    return run("mm.default", [spec(left), spec(99, 1024, 1024)], [spec(result)])


def kernel_at(step: FusedStep, position: int) -> FusedKernel:
    (found,) = (kernel for kernel in step.kernels if position in kernel.positions)
    return found


def test_an_activation_of_what_is_in_memory_is_computed_again() -> None:
    """The scaled input of an activation: of it, forward and backward read what a product made."""
    forward = [
        product(0, 1),
        run("mul.Tensor", [spec(1), spec(2)], [spec(3)]),
        run("silu.default", [spec(3)], [spec(4)]),
        product(4, 5),
    ]
    step = trained(forward, [run("silu_backward.default", [spec(6), spec(3)], [spec(7)])])

    assert storages(kernel_at(step, 2).writes) == [4]
    assert storages(kernel_at(step, 4).reads) == [1, 2, 6]


def test_what_a_library_reads_is_saved() -> None:
    forward = [product(0, 1), run("silu.default", [spec(1)], [spec(2)]), product(2, 3)]
    step = trained(forward, [product(2, 4), run("mul.Tensor", [spec(2), spec(4)], [spec(5)])])

    assert storages(kernel_at(step, 1).writes) == [2]
    assert storages(kernel_at(step, 4).reads) == [2, 4]


def test_random_numbers_and_sums_are_saved() -> None:
    dropout = run("native_dropout.default", [spec(1)], [spec(2), spec(3)])
    used = run("native_dropout_backward.default", [spec(6), spec(3)], [spec(7)])
    step = trained([product(0, 1), dropout, product(2, 5)], [used])
    assert storages(kernel_at(step, 1).writes) == [2, 3]

    sums = run("sum.dim_IntList", [spec(1)], [spec(2, 64)], dim=[1])
    step = trained([product(0, 1), sums], [run("neg.default", [spec(2, 64)], [spec(3, 64)])])
    assert storages(kernel_at(step, 1).writes) == [2]


def test_a_sum_is_saved_rather_than_both_of_its_terms() -> None:
    """A residual stream that the next layers read too: it is in memory, its new term is not."""
    forward = [
        product(0, 1),
        run("add.Tensor", [spec(10), spec(1)], [spec(2)]),
        product(2, 3),
        run("add.Tensor", [spec(2), spec(3)], [spec(4)]),
    ]
    step = trained(forward, [run("mul.Tensor", [spec(20), spec(2)], [spec(21)])])

    assert storages(kernel_at(step, 4).reads) == [2, 20]


def test_probabilities_are_computed_again_from_scores_and_sums() -> None:
    """Of a softmax in float32 whose result is cast for a product, only the sums are saved."""
    half = TensorSpec(shape=FULL, dtype="float16", device="cuda:0", storage=3)
    forward = [
        product(0, 1),
        run("_softmax.default", [spec(1)], [spec(2)], dim=-1),
        run("_to_copy.default", [spec(2)], [half]),
        run("mm.default", [half, spec(99, 1024, 1024)], [spec(4)]),
    ]
    gradient = run("_softmax_backward_data.default", [spec(5), spec(2)], [spec(6)], dim=-1)
    step = trained(forward, [gradient])

    written = kernel_at(step, 1).writes
    assert sum(s.num_bytes for s in written if s.storage == 2) == 0
    assert {s.storage for s in kernel_at(step, 4).reads} >= {1, 5}
    assert 2 not in storages(kernel_at(step, 4).reads)


def test_a_chain_is_computed_again_from_its_start() -> None:
    forward = [
        product(0, 1),
        run("mul.Tensor", [spec(1), spec(8)], [spec(2)]),
        run("exp.default", [spec(2)], [spec(3)]),
        run("silu.default", [spec(3)], [spec(4)]),
        product(4, 5),
    ]
    backward = [
        run("silu_backward.default", [spec(6), spec(3)], [spec(7)]),
        run("mul.Tensor", [spec(7), spec(2)], [spec(9)]),
    ]
    step = trained(forward, backward)

    assert storages(kernel_at(step, 3).writes) == [4]
    (kernel,) = (found for found in step.kernels if 5 in found.positions)
    assert storages(kernel.reads) == [1, 6, 8]

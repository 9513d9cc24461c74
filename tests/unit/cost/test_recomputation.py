"""What the backward pass of a compiled step computes again, worked out by hand."""

from __future__ import annotations

from breakeven.cost import FusedKernel, FusedStep, fuse, lower
from breakeven.trace import Op, Settings, TensorSpec

FULL = (64, 1024)
FORWARD, BACKWARD = 0, 1


def spec(storage: int, *shape: int) -> TensorSpec:
    return TensorSpec(shape=shape or FULL, dtype="float32", device="cuda:0", storage=storage)


def run(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], **attributes: object) -> Op:
    return Op(
        name=f"aten.{name}", inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes
    )


def fused(forward: list[Op], backward: list[Op]) -> FusedStep:
    events = (*forward, *backward)
    regions = [FORWARD] * len(forward) + [BACKWARD] * len(backward)
    return fuse(events, [lower(event, Settings()) for event in events], regions)


def product(left: int, result: int) -> Op:
    return run("mm.default", [spec(left), spec(99, 1024, 1024)], [spec(result)])


def kernel_at(step: FusedStep, position: int) -> FusedKernel:
    (found,) = (kernel for kernel in step.kernels if position in kernel.positions)
    return found


def storages(specs: tuple[TensorSpec, ...]) -> list[int]:
    return sorted(spec.storage for spec in specs)


def test_an_activation_of_what_is_in_memory_is_computed_again() -> None:
    """The scaled input of an activation: of it, forward and backward read what a product made."""
    forward = [
        product(0, 1),
        run("mul.Tensor", [spec(1), spec(2)], [spec(3)]),
        run("silu.default", [spec(3)], [spec(4)]),
        product(4, 5),
    ]
    step = fused(forward, [run("silu_backward.default", [spec(6), spec(3)], [spec(7)])])

    assert storages(kernel_at(step, 2).writes) == [4]
    assert storages(kernel_at(step, 4).reads) == [1, 2, 6]


def test_what_a_library_reads_is_saved() -> None:
    forward = [product(0, 1), run("silu.default", [spec(1)], [spec(2)]), product(2, 3)]
    step = fused(forward, [product(2, 4), run("mul.Tensor", [spec(2), spec(4)], [spec(5)])])

    assert storages(kernel_at(step, 1).writes) == [2]
    assert storages(kernel_at(step, 4).reads) == [2, 4]


def test_random_numbers_and_sums_are_saved() -> None:
    dropout = run("native_dropout.default", [spec(1)], [spec(2), spec(3)])
    used = run("native_dropout_backward.default", [spec(6), spec(3)], [spec(7)])
    step = fused([product(0, 1), dropout, product(2, 5)], [used])
    assert storages(kernel_at(step, 1).writes) == [2, 3]

    sums = run("sum.dim_IntList", [spec(1)], [spec(2, 64)], dim=[1])
    step = fused([product(0, 1), sums], [run("neg.default", [spec(2, 64)], [spec(3, 64)])])
    assert storages(kernel_at(step, 1).writes) == [2]


def test_a_sum_is_saved_rather_than_both_of_its_terms() -> None:
    """A residual stream that the next layers read too: it is in memory, its new term is not."""
    forward = [
        product(0, 1),
        run("add.Tensor", [spec(10), spec(1)], [spec(2)]),
        product(2, 3),
        run("add.Tensor", [spec(2), spec(3)], [spec(4)]),
    ]
    step = fused(forward, [run("mul.Tensor", [spec(20), spec(2)], [spec(21)])])

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
    step = fused(forward, [gradient])

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
    step = fused(forward, backward)

    assert storages(kernel_at(step, 3).writes) == [4]
    (kernel,) = (found for found in step.kernels if 5 in found.positions)
    assert storages(kernel.reads) == [1, 6, 8]

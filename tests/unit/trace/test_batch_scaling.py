from __future__ import annotations

import msgspec
import pytest

from breakeven.trace import (
    Copy,
    Event,
    HostWork,
    Op,
    Phase,
    ScaledTrace,
    ScalingError,
    StepTrace,
    Sync,
    TensorSpec,
)
from factories.steps import at, tensor


def step(batch: int, *extra: Event) -> StepTrace:
    return StepTrace(
        events=(
            HostWork(kind="data", duration_ns=1_000 + 10 * batch),
            Copy(source="cpu", destination="cuda:0", num_bytes=batch * 12, storage=7),
            Op(
                name="aten.addmm.default",
                inputs=(tensor(5), tensor(batch, 3), tensor(3, 5)),
                outputs=(tensor(batch, 5, storage=9),),
                location=at(3),
            ),
            Op(
                name="aten.view.default",
                inputs=(tensor(2 * batch + 1, 5),),
                outputs=(tensor(10 * batch + 5),),
                attributes={"size": [10 * batch + 5], "flag": True, "word": "mean", "end": -1},
            ),
            Sync(kind="cpu", num_bytes=4 * batch),
            *extra,
        ),
        batch_size=batch,
        num_parameters=20,
        peak_memory_bytes=1_000 + 32 * batch,
    )


@pytest.mark.parametrize("batch", [1, 2, 8, 20, 1000])
@pytest.mark.parametrize(("first", "second"), [(8, 16), (16, 8), (3, 4)])
def test_every_size_is_the_step_of_that_size(batch: int, first: int, second: int) -> None:
    assert ScaledTrace(step(first), step(second)).at(batch) == step(batch)


def test_traced_sizes_give_back_the_traces() -> None:
    first, second = step(8), step(16)
    scaled = ScaledTrace(first, second)

    assert scaled.at(8) is first
    assert scaled.at(16) is second


def test_what_does_not_scale_is_shared() -> None:
    constant = Op(name="aten.t.default", inputs=(tensor(3, 5),), outputs=(tensor(5, 3),))
    first, second = step(8, constant), step(16, msgspec.structs.replace(constant, host_ns=7))

    assert ScaledTrace(first, second).at(100).events[-1] is first.events[-1]


def test_sizes_stay_positive() -> None:
    shrinking = [
        StepTrace(
            events=(Op(name="aten.cat.default", inputs=(), outputs=(tensor(20 - b),)),),
            batch_size=b,
        )
        for b in (8, 16)
    ]
    (op,) = ScaledTrace(*shrinking).at(100).ops
    assert op.outputs[0].shape == (1,)


@pytest.mark.parametrize(
    ("durations", "batch", "expected"),
    [
        ((100, 180), 24, 260),  # 20 + 10 per sample
        ((100, 90), 1000, 95),  # less at the larger size is noise
        ((100, 400), 24, 600),  # more than proportional: proportional to the larger
        ((100, 400), 1, 25),
    ],
)
def test_durations_neither_shrink_nor_turn_negative(
    durations: tuple[int, int], batch: int, expected: int
) -> None:
    first, second = (
        StepTrace(events=(HostWork(kind="data", duration_ns=ns),), batch_size=size)
        for ns, size in zip(durations, (8, 16), strict=True)
    )
    assert ScaledTrace(first, second).at(batch).events == (
        HostWork(kind="data", duration_ns=expected),
    )
    assert ScaledTrace(second, first).at(batch).events == (
        HostWork(kind="data", duration_ns=expected),
    )


def test_script_work_seen_at_one_size_alone_counts_half() -> None:
    hiccup = HostWork(kind="script", duration_ns=500, phase=Phase.FORWARD)
    event = Sync(kind="item")
    first = StepTrace(events=(hiccup, event), batch_size=8)
    second = StepTrace(events=(event,), batch_size=16)
    half = msgspec.structs.replace(hiccup, duration_ns=250)

    assert ScaledTrace(first, second).at(64).events == (half, event)
    assert ScaledTrace(second, first).at(64).events == (half, event)


def test_first_different_operator_is_named_with_both_lines() -> None:
    one = Op(name="aten.relu.default", inputs=(), outputs=(), location=at(10))
    other = Op(name="aten.gelu.default", inputs=(), outputs=(), location=at(12))

    with pytest.raises(ScalingError) as error:
        ScaledTrace(step(8, one, other), step(16, other, one))
    assert error.value.message == (
        "the step does other things at batch size 16 than at 8: aten.gelu.default at train.py:12 "
        "instead of aten.relu.default at train.py:10"
    )
    assert error.value.hint is not None


@pytest.mark.parametrize(
    ("inputs", "outputs", "told"),
    [
        (1, (3, 6), "returns 6 tensors instead of 3"),
        ((3, 6), 1, "is given 6 tensors instead of 3"),
        (1, 1, "works on tensors of other types or numbers of dimensions"),
    ],
)
def test_one_operator_that_differs_is_told_by_what_differs(
    inputs: int | tuple[int, int], outputs: int | tuple[int, int], told: str
) -> None:
    def unbind(number: int) -> Op:
        num_inputs, num_outputs = (
            many if isinstance(many, int) else many[number] for many in (inputs, outputs)
        )
        is_other = inputs == outputs and number
        each = tensor(2, 2) if is_other else tensor(2)
        return Op(
            name="aten.unbind.int",
            inputs=(each,) * num_inputs,
            outputs=(each,) * num_outputs,
            location=at(51),
        )

    with pytest.raises(ScalingError, match=f"aten.unbind.int at train.py:51 {told}"):
        ScaledTrace(step(8, unbind(0)), step(16, unbind(1)))


def test_a_longer_step_is_a_different_step() -> None:
    with pytest.raises(ScalingError, match=r"a sync .item. instead of the end of the step"):
        ScaledTrace(step(8), step(16, Sync(kind="item")))
    with pytest.raises(ScalingError, match=r"the end of the step instead of a sync .item."):
        ScaledTrace(step(8, Sync(kind="item")), step(16))


@pytest.mark.parametrize("sizes", [(8, 8), (None, 8), (8, None)])
def test_two_known_sizes_are_needed(sizes: tuple[int | None, int | None]) -> None:
    first, second = (msgspec.structs.replace(step(8), batch_size=size) for size in sizes)
    with pytest.raises(ScalingError, match="batch size"):
        ScaledTrace(first, second)


def test_an_empty_batch_is_misuse() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ScaledTrace(step(8), step(16)).at(0)


def test_the_peak_moves_from_the_update_to_activations() -> None:
    def at(size: int) -> StepTrace:
        def on_gpu(storage: int, *shape: int) -> TensorSpec:
            return tensor(*shape, device="cuda:0", storage=storage)

        def op(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> Op:
            return Op(name="aten.mm.default", inputs=inputs, outputs=outputs)

        weight, batch, hidden, gradient, update = (
            on_gpu(0, 100), on_gpu(1, size), on_gpu(2, size, 10), on_gpu(3, 100), on_gpu(4, 100)
        )  # fmt: skip
        return StepTrace(
            events=(
                op((batch, weight), (hidden,)),
                op((hidden,), (gradient,)),
                op((gradient,), (update,)),
            ),
            batch_size=size,
            # In the update: weight, batch, gradient, update, and 400 bytes that no operator shows.
            peak_memory_bytes=4 * (300 + size) + 400,
        )

    scaled = ScaledTrace(at(2), at(3))

    assert scaled.peak_memory_bytes(2) == 4 * 302 + 400
    assert scaled.peak_memory_bytes(5) == 4 * 305 + 400
    # In the backward pass: weight, batch, hidden and gradient.
    assert scaled.peak_memory_bytes(100) == 4 * (200 + 100 + 1000)

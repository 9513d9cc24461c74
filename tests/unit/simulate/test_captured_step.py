"""What a step needs to be one CUDA graph, and what stands in its way."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.simulate import Edit, captured_step
from breakeven.trace import (
    Copy,
    Event,
    Location,
    OptimizerFacts,
    Phase,
    RunFacts,
    StepTrace,
    Sync,
)
from factories.steps import model_call, op, tensor

READ = Sync(kind="item", num_bytes=4)
BATCH = Copy(source="cpu", destination="cuda:0", num_bytes=400)
FORWARD = op(10)
UPDATE = op(10, phase=Phase.OPTIMIZER)
COUNT = op(
    host_ns=9, name="aten._foreach_add_.Scalar", phase=Phase.OPTIMIZER, device="cpu",
    inputs=(tensor(),) * 6,
)  # fmt: skip


def step(*events: Event, optimizer: str = "Adam", **facts: object) -> StepTrace:
    made = OptimizerFacts(name=optimizer, location=None, num_tensors=6)
    return StepTrace(events=events, facts=RunFacts(optimizers=(made,), **facts))


@pytest.mark.parametrize(
    "events",
    [
        (BATCH, FORWARD, UPDATE),
        (FORWARD, BATCH, UPDATE),
        (READ, FORWARD, UPDATE),
        (FORWARD, COUNT, UPDATE, READ),
    ],
    ids=["the batch arrives", "noise arrives", "read before", "read after"],
)
def test_what_comes_before_and_after_stays_outside(events: tuple[Event, ...]) -> None:
    assert isinstance(captured_step(step(*events)), Edit)


def test_reads_of_the_step_before_are_none_of_the_graph() -> None:
    metric = step(op(5), READ, FORWARD, UPDATE, model_calls=(model_call(first_event=2),))
    assert isinstance(captured_step(metric), Edit)


def test_an_optimizer_that_counts_nothing_does_not_stand_in_the_way_of_another() -> None:
    made = [OptimizerFacts(name=name, location=None, num_tensors=6) for name in ("SGD", "Adam")]
    both = StepTrace(events=(FORWARD, COUNT, UPDATE), facts=RunFacts(optimizers=tuple(made)))
    assert isinstance(captured_step(both), Edit)


def test_reads_in_the_middle_are_counted() -> None:
    back = Copy(source="cuda:0", destination="cpu", num_bytes=4)
    assert "(3× per step)" in str(captured_step(step(FORWARD, READ, READ, back, UPDATE)))


def test_shapes_that_differ_need_a_graph_each() -> None:
    facts = {"num_shapes": 3, "shapes_vary_at": Location(file="train.py", line=7)}
    assert "shapes differ" in str(captured_step(step(FORWARD, UPDATE, **facts)))


def test_an_optimizer_has_to_count_on_the_device() -> None:
    events = (FORWARD, COUNT, UPDATE)
    assert captured_step(step(*events, optimizer="Adagrad")) == (
        "Adagrad counts its steps on the CPU"
    )
    own = replace(step(*events).facts.optimizers[0], is_from_torch=False)
    counting = replace(step(*events), facts=RunFacts(optimizers=(own,)))
    assert captured_step(counting) == "Adam counts its steps on the CPU"


def test_weights_on_the_cpu_are_updated_there() -> None:
    weights = replace(COUNT, inputs=(tensor(8, 8),))
    assert captured_step(step(FORWARD, weights, UPDATE)) == "part of its update runs on the CPU"


def test_the_count_of_steps_moves_to_the_device_and_the_update_is_fused() -> None:
    trace = step(FORWARD, COUNT, UPDATE)
    fused = op(3, name="aten._fused_adam_.default", phase=Phase.OPTIMIZER)
    edit = captured_step(trace, Edit(replaced={2: (fused,)}))
    assert isinstance(edit, Edit)
    assert edit.apply(trace).events == (FORWARD, replace(COUNT, device="cuda:0"), fused)

"""Where the time of a step goes, worked out by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.cost import reference_host, shipped_costs
from breakeven.device import find_device
from breakeven.simulate import Attribution, StepCause, TimePart, WhatIf, build_program
from breakeven.simulate.attribution import whole_parts
from breakeven.simulate.cost_table import cost_table
from breakeven.simulate.critical_path import Spent, critical_path
from breakeven.simulate.priced_step import price
from breakeven.simulate.repeated_step import RepeatedStep
from breakeven.trace import Copy, Event, HostWork, Op, Phase, StepTrace, Sync, TensorSpec
from factories.steps import GPU, HOST, MadeUpCosts, at, op

SYNC = Sync(kind="item", num_bytes=4, location=at(9))


def what_if(*events: Event, **costs: float) -> WhatIf:
    return WhatIf(build_program(StepTrace(events=events), costs=MadeUpCosts(**costs)), GPU, HOST)


def attributed(*events: Event, **costs: float) -> Attribution:
    return what_if(*events, **costs).attribution()


def by_cause(found: Attribution) -> dict[str, int]:
    return found.by(lambda part: part.cause)


def by_line(found: Attribution) -> dict[tuple[str, int | None], int]:
    return found.by(lambda part: (part.cause, part.line))


def copy(num_bytes: int, *, is_pinned: bool = False, non_blocking: bool = False) -> Copy:
    return Copy(
        source="cpu",
        destination="cuda:0",
        num_bytes=num_bytes,
        is_pinned=is_pinned,
        non_blocking=non_blocking,
        location=at(7),
    )


def test_where_the_host_is_slow_its_work_is_the_step() -> None:
    found = attributed(
        op(10, host_ns=100, python_ns=60, line=1), op(20, host_ns=100, line=2), launch_ns=5
    )

    assert found.step_ns == 210
    assert by_line(found) == {
        ("dispatcher", 2): 100,
        ("python", 1): 60,
        ("dispatcher", 1): 40,
        ("launch", 1): 5,
        ("launch", 2): 5,
    }


def test_where_the_device_is_slow_its_kernels_and_the_gaps_are_the_step() -> None:
    found = attributed(op(100, host_ns=10, line=1), op(200, host_ns=20, line=2), gap_ns=2)

    assert by_line(found) == {
        ("device-elementwise", 2): 200,
        ("device-elementwise", 1): 100,
        ("device-idle", 1): 2,
        ("device-idle", 2): 2,
    }


def test_a_sync_makes_the_path_alternate() -> None:
    # Issued at 10, starts at 14; 14-114 and 114-314; the second issue is hidden. Sync to 319.
    events = (op(100, host_ns=10, line=1), op(200, host_ns=20, line=2), SYNC)
    found = what_if(*events, sync_ns=5, latency_ns=4)

    assert by_line(found.attribution()) == {
        ("device-elementwise", 2): 200,
        ("device-elementwise", 1): 100,
        ("dispatcher", 1): 10,
        ("sync", 9): 5,
        ("device-idle", 1): 4,
    }
    assert found.critical_events() == {(0, False), (0, True), (1, True), (2, False)}


def test_all_that_the_host_issues_in_the_optimizer_is_the_optimizers() -> None:
    found = attributed(
        op(1, host_ns=10, python_ns=4, phase=Phase.OPTIMIZER),
        op(host_ns=30, device="cpu", phase=Phase.OPTIMIZER),
        launch_ns=3,
    )
    assert by_cause(found) == {"host-operators": 30, "optimizer": 13}
    assert found.by(lambda part: part.phase) == {"optimizer": 43}


def test_what_the_host_does_itself_is_told_apart() -> None:
    found = attributed(
        HostWork(kind="data", duration_ns=50, location=at(3)),
        HostWork(kind="script", duration_ns=40, phase=Phase.FORWARD),
        HostWork(kind="save", duration_ns=5),
        op(host_ns=30, device="cpu"),
    )
    assert by_cause(found) == {"data-loading": 50, "script": 45, "host-operators": 30}


def test_waiting_for_the_loader_is_data_loading() -> None:
    work = HostWork(kind="data", duration_ns=300, num_workers=2)
    assert by_cause(attributed(work, op(10, host_ns=10))) == {"data-loading": 150}
    fast = HostWork(kind="data", duration_ns=10, num_workers=2)
    assert by_cause(attributed(fast, op(6, host_ns=10))) == {"dispatcher": 10}


def test_a_blocking_copy_is_on_the_path_with_what_it_waits_for() -> None:
    # Issue 10, kernel 100, copy 50; the last operator's kernel is hidden, not its issue.
    found = attributed(op(100, host_ns=10), copy(50), op(8, host_ns=10))
    assert by_cause(found) == {"device-elementwise": 100, "copy-pageable": 50, "dispatcher": 20}
    pinned = attributed(op(100, host_ns=10), copy(50, is_pinned=True), op(10, host_ns=10))
    assert by_cause(pinned)["copy-pinned"] == 50


def test_a_queued_copy_is_the_devices() -> None:
    found = attributed(copy(50, is_pinned=True, non_blocking=True), op(100, host_ns=120))
    assert by_cause(found) == {"device-elementwise": 100, "copy-pinned": 49}


def test_what_is_lost_by_working_at_the_same_time_belongs_to_no_line() -> None:
    found = attributed(op(300, host_ns=30, line=1), overlap_loss_fraction=0.5)

    assert found.step_ns == 315
    lost = TimePart(cause="overlap", phase="", module="", file=None, line=None, time_ns=15)
    assert lost in found.parts


def test_launches_that_come_too_slowly_are_launches() -> None:
    assert by_cause(attributed(op(40, launches=4), SYNC, launch_ns=50)) == {
        "launch": 200,
        "device-elementwise": 10,
    }


def test_launches_that_wait_for_each_other_are_kernels_and_gaps() -> None:
    found = attributed(op(400, launches=4), SYNC, launch_ns=5, gap_ns=1)
    assert by_cause(found) == {"device-elementwise": 400, "launch": 5, "device-idle": 3}


def test_a_full_queue_leads_to_the_launch_that_makes_room() -> None:
    # As in the timelines worked out by hand: 350 of the script, and a kernel of 100 before it.
    events = (op(100), op(100), op(100), op(100), HostWork(kind="script", duration_ns=350))
    program = build_program(StepTrace(events=events), costs=MadeUpCosts())
    step = price(cost_table((program,), (GPU,), HOST), is_merged=False)
    repeated = RepeatedStep(step, queue_depth=2)
    path = critical_path(repeated)

    spent = {
        kind: sum(piece.time_ns for piece in path.pieces if piece.spent is kind)
        for kind in (Spent.KERNEL, Spent.ISSUE)
    }
    assert (repeated.period_ns.item(), path.num_steps) == (450, 1)
    assert spent == {Spent.KERNEL: 100, Spent.ISSUE: 350}


def test_parts_of_a_nanosecond_go_to_the_largest_remainders() -> None:
    assert whole_parts((33.2, 33.3, 33.5), 100) == (33, 33, 34)
    assert whole_parts((0.4, 0.4, 0.4), 1) == (1, 0, 0)
    assert whole_parts((), 0) == ()


def test_time_below_a_frameworks_line_is_told_apart_by_its_functions() -> None:
    events = (
        replace(op(host_ns=10, line=7), stack=0),
        replace(op(host_ns=30, line=7), stack=1),
        op(host_ns=5, line=7),
    )
    frames = (("a:T.fit", "a:T.step"), ("a:T.fit", "a:T.backward"))
    trace = StepTrace(events=events, stacks=((at(7),), (at(7),)), frames=frames)
    found = WhatIf(build_program(trace, costs=MadeUpCosts()), GPU, HOST).attribution()
    assert found.by(lambda part: (part.line, part.frames)) == {
        (7, frames[1]): 30,
        (7, frames[0]): 10,
        (7, ()): 5,
    }


def test_the_call_of_the_optimizer_is_time_of_its_line() -> None:
    events = (op(10, host_ns=100, line=1), op(10, host_ns=20, line=3, phase=Phase.OPTIMIZER))
    program = build_program(StepTrace(events=events), costs=MadeUpCosts())
    found = WhatIf(program, GPU, replace(HOST, step_ns=30)).attribution()
    assert by_line(found) == {(StepCause.DISPATCHER, 1): 100, (StepCause.OPTIMIZER, 3): 50}


def test_an_empty_step_has_no_parts() -> None:
    found = attributed()
    assert (found.step_ns, found.parts) == (0, ())


@pytest.mark.parametrize(
    ("phase", "causes"),
    [
        (Phase.FORWARD, {StepCause.PYTHON, StepCause.DISPATCHER, StepCause.AUTOGRAD}),
        (Phase.BACKWARD, {StepCause.DISPATCHER}),
        (Phase.DATA, {StepCause.DISPATCHER}),
    ],
)
def test_the_costs_that_ship_tell_python_dispatcher_and_autograd_apart(
    phase: Phase, causes: set[str]
) -> None:
    small = TensorSpec(shape=(4, 4), dtype="float32", device="cuda:0")
    add = Op(
        name="aten.add.Tensor", inputs=(small, small), outputs=(small,), phase=phase,
        module="body.0",
    )  # fmt: skip
    program = build_program(StepTrace(events=(add,)), costs=shipped_costs())
    found = WhatIf(program, find_device("A100"), reference_host()).attribution()

    assert {part.cause for part in found.parts} - {"overlap"} == {*causes, StepCause.LAUNCH}
    assert {part.module for part in found.parts if part.cause != "overlap"} == {"body.0"}

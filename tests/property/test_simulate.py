"""What holds for every step, whatever it consists of."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from breakeven.simulate import (
    TYPICAL,
    Edit,
    Scenario,
    WhatIf,
    build_program,
    predict_steps,
    simulate,
)
from breakeven.simulate.program import FAST, SLOW
from breakeven.trace import Copy, Event, HostWork, Op, StepTrace, Sync
from factories.random_steps import COSTS, EVENTS, OPS, TIMES
from factories.steps import GPU, HOST, MadeUpCosts, made_up_device, op


def step_ns(events: list[Event], costs: MadeUpCosts, queue_depth: int = 1024) -> float:
    program = build_program(StepTrace(events=tuple(events)), costs=costs)
    return simulate((program,), (GPU,), HOST, queue_depth=queue_depth).step_ns.item()


def tolerance(time_ns: float) -> float:
    return 1e-6 * time_ns + 1e-6


@given(EVENTS, COSTS)
def test_a_step_takes_at_least_each_timeline_and_at_most_both(
    events: list[Event], costs: MadeUpCosts
) -> None:
    program = build_program(StepTrace(events=tuple(events)), costs=costs)
    times = simulate((program,), (GPU,), HOST)
    host, device = times.host_busy_ns.item(), times.device_busy_ns.item()
    step = times.step_ns.item()
    loader = sum(e.duration_ns / e.num_workers for e in events if _is_parallel(e))
    waits = sum(isinstance(e, Sync | Copy) for e in events)
    starts = sum(len(e.attributes["kernel_ns"]) for e in events if isinstance(e, Op)) + waits
    delays = (waits + 1) * costs.latency_ns + starts * costs.gap_ns

    assert step >= max(host, device, loader) - tolerance(step)
    assert step <= host + device + loader + delays + tolerance(step)


def _is_parallel(event: Event) -> bool:
    return isinstance(event, HostWork) and event.num_workers > 0


@given(st.lists(OPS, min_size=1, max_size=8), st.integers(0, 50))
def test_with_a_sync_after_each_kernel_nothing_overlaps(ops: list[Op], sync_ns: int) -> None:
    one_kernel = [
        op(*o.attributes["kernel_ns"][:1], host_ns=o.attributes["host_ns"], launches=1) for o in ops
    ]
    events: list[Event] = [e for o in one_kernel for e in (o, Sync(kind="item"))]
    total = sum(o.attributes["host_ns"] + sum(o.attributes["kernel_ns"]) for o in one_kernel)

    assert step_ns(events, MadeUpCosts(sync_ns=sync_ns)) == total + sync_ns * len(ops)


@given(EVENTS, COSTS, st.data())
def test_more_work_never_makes_a_step_faster(
    events: list[Event], costs: MadeUpCosts, data: st.DataObject
) -> None:
    positions = [i for i, event in enumerate(events) if isinstance(event, Op)]
    if not positions:
        return
    position = data.draw(st.sampled_from(positions))
    more = data.draw(TIMES)
    name = data.draw(st.sampled_from(["host_ns", "kernel_ns"]))
    slow = events[position]
    assert isinstance(slow, Op)
    attributes = dict(slow.attributes)
    if name == "host_ns":
        attributes[name] += more
        slower = msgspec.structs.replace(slow, attributes=attributes, host_ns=slow.host_ns + more)
    else:
        attributes[name] = [time + more for time in attributes[name]]
        slower = msgspec.structs.replace(slow, attributes=attributes)
    changed = [*events[:position], slower, *events[position + 1 :]]

    before, after = step_ns(events, costs), step_ns(changed, costs)
    assert after >= before - tolerance(before)


@given(EVENTS, COSTS)
def test_removing_syncs_never_makes_a_step_slower(events: list[Event], costs: MadeUpCosts) -> None:
    trace = StepTrace(events=tuple(events))
    program = build_program(trace, costs=costs)
    syncs = [i for i, event in enumerate(events) if isinstance(event, Sync)]
    without = program.edited(Edit(replaced=dict.fromkeys(syncs, ())))
    before, after = simulate((program, without), (GPU,), HOST).step_ns[:, 0, 0]

    assert not without.trace.syncs
    assert after <= before + tolerance(before)


@given(EVENTS, COSTS, st.integers(1, 6), st.integers(1, 6))
def test_a_longer_queue_never_makes_a_step_slower(
    events: list[Event], costs: MadeUpCosts, depth: int, more: int
) -> None:
    short = step_ns(events, costs, queue_depth=depth)
    long = step_ns(events, costs, queue_depth=depth + more)

    assert long <= short * (1 + 1e-3) + 1


@given(EVENTS, COSTS, st.sampled_from([TYPICAL, FAST, SLOW]))
def test_running_together_changes_nothing(
    events: list[Event], costs: MadeUpCosts, scenario: Scenario
) -> None:
    program = build_program(StepTrace(events=tuple(events)), costs=costs)
    devices = (GPU, made_up_device("Other"))
    scenarios = (SLOW, TYPICAL, FAST)
    together = simulate((program, program), devices, HOST, scenarios=scenarios)
    alone = simulate((program,), (GPU,), HOST, scenarios=(scenario,)).step_ns.item()
    one = together.step_ns[1, 1, scenarios.index(scenario)]

    assert abs(one - alone) <= tolerance(alone)
    typical = WhatIf(program, GPU, HOST).timeline.step_ns
    assert abs(typical - together.step_ns[1, 0, 1]) <= tolerance(alone)


@given(EVENTS, COSTS)
def test_spans_lie_within_their_timelines_in_order(events: list[Event], costs: MadeUpCosts) -> None:
    program = build_program(StepTrace(events=tuple(events)), costs=costs)
    timeline = WhatIf(program, GPU, HOST).timeline

    for is_on_device in (False, True):
        spans = [span for span in timeline.spans if span.is_on_device is is_on_device]
        for span in spans:
            assert span.end_ns >= span.start_ns
        for one, other in itertools.pairwise(spans):
            assert other.start_ns >= one.end_ns - tolerance(one.end_ns)


@given(EVENTS, COSTS)
def test_a_prediction_lies_in_its_interval(events: list[Event], costs: MadeUpCosts) -> None:
    trace = StepTrace(events=tuple(events), batch_size=4)
    (prediction,) = predict_steps(trace, (GPU,), HOST, costs=costs)
    estimate = prediction.estimate

    assert estimate.low_ns <= estimate.value_ns <= estimate.high_ns
    assert 0 <= prediction.launch_ns <= prediction.host_ns + tolerance(prediction.host_ns)

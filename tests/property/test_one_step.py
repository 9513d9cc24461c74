"""One step simulated alone, changed and taken apart, against many steps simulated at once."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.simulate import (
    Edit,
    Scenario,
    WhatIf,
    build_program,
    predict_steps,
    simulate,
)
from breakeven.simulate.cost_table import cost_table
from breakeven.simulate.critical_path import critical_path
from breakeven.simulate.priced_step import price
from breakeven.simulate.repeated_step import LAUNCH_QUEUE_DEPTH, RepeatedStep
from breakeven.trace import Event, Op, StepTrace
from factories.random_steps import COSTS, EVENTS, OPS, SCENARIOS
from factories.steps import GPU, HOST, MadeUpCosts, made_up_device

OTHER_GPU = made_up_device("Other GPU")
_LOSSES = st.sampled_from((0.0, 0.25))
_SIGMAS = st.lists(st.sampled_from((0.0, 0.1, 0.3)), min_size=12, max_size=12)


def unsure(events: list[Event], sigmas: list[float]) -> tuple[Event, ...]:
    """Return the events with kernels that are off by themselves."""
    return tuple(
        msgspec.structs.replace(event, attributes={**event.attributes, "sigma": sigma})
        if isinstance(event, Op)
        else event
        for event, sigma in zip(events, sigmas, strict=False)
    )


def with_other_kernels(event: Event, kernels_ns: list[int], launches: int) -> Event:
    """Return an operator of the device with other kernels; any other event as it is."""
    if not isinstance(event, Op) or event.is_on_host:
        return event
    costs = {**event.attributes, "kernel_ns": kernels_ns, "launches": launches}
    return msgspec.structs.replace(event, attributes=costs)


@given(
    EVENTS, _SIGMAS, COSTS, st.lists(SCENARIOS, min_size=1, max_size=3), st.integers(1, 8),
    st.booleans(), st.lists(st.integers(0, 1000), max_size=3), st.integers(1, 3),
)  # fmt: skip
def test_one_step_alone_is_as_many_at_once(
    events: list[Event],
    sigmas: list[float],
    costs: MadeUpCosts,
    scenarios: list[Scenario],
    queue_depth: int,
    is_merged: bool,
    kernels_ns: list[int],
    launches: int,
) -> None:
    costs = dataclasses.replace(costs, log_sigma=0.2, graph_launch_ns=30.0)
    first = unsure(events, sigmas)
    second = tuple(
        with_other_kernels(event, kernels_ns, launches) if index % 2 else event
        for index, event in enumerate(first)
    )
    programs = [build_program(StepTrace(events=step), costs=costs) for step in (first, second)]
    together = simulate(programs, (GPU, OTHER_GPU), HOST, scenarios=scenarios)

    for p, program in enumerate(programs):
        # The queue is counted on the program with the most launches, so each has its own here.
        alone = simulate((program,), (GPU,), HOST, scenarios=scenarios, queue_depth=queue_depth)
        for k, scenario in enumerate(scenarios):
            table = cost_table((program,), (GPU,), HOST)
            step = price(table, (scenario,), is_merged=is_merged)
            for many, at, depth in (
                (alone, (0, 0, k), queue_depth),
                (together, (p, 0, k), LAUNCH_QUEUE_DEPTH),
                (together, (p, 1, k), LAUNCH_QUEUE_DEPTH),
            ):
                assert RepeatedStep(step, depth).step_ns.item() == pytest.approx(
                    float(many.step_ns[at]), rel=1e-9, abs=1e-9
                )
                host_ns, device_ns = many.host_busy_ns[at], many.device_busy_ns[at]
                assert step.host_ns.item() == pytest.approx(float(host_ns), rel=1e-9, abs=1e-9)
                assert step.device_ns.item() == pytest.approx(float(device_ns), rel=1e-9, abs=1e-9)


@given(EVENTS, EVENTS, _SIGMAS, COSTS, SCENARIOS, st.data())
def test_a_change_gives_what_predicting_the_changed_step_gives(
    events: list[Event],
    others: list[Event],
    sigmas: list[float],
    costs: MadeUpCosts,
    scenario: Scenario,
    data: st.DataObject,
) -> None:
    trace = StepTrace(events=unsure(events, sigmas))
    new = unsure(others, sigmas)
    positions = st.dictionaries(
        st.integers(0, max(0, len(events) - 1)),
        st.lists(st.sampled_from(new or (None,)), max_size=3),
    )
    drawn = data.draw(positions) if events and new else {}
    edit = Edit(replaced={index: tuple(kept) for index, kept in drawn.items()})
    what_if = WhatIf(build_program(trace, costs=costs), GPU, HOST)

    result = what_if.fixed(edit)
    (changed,) = predict_steps(edit.apply(trace), (GPU,), HOST, costs=costs)
    (unchanged,) = predict_steps(trace, (GPU,), HOST, costs=costs)
    for one, other in ((result.fixed, changed.estimate), (what_if.step, unchanged.estimate)):
        assert one.value_ns == pytest.approx(other.value_ns, rel=1e-9, abs=1e-9)
        assert one.low_ns == pytest.approx(other.low_ns, rel=1e-9, abs=1e-9)
        assert one.high_ns == pytest.approx(other.high_ns, rel=1e-9, abs=1e-9)
    assert result.gain_low_fraction <= result.gain_fraction <= result.gain_high_fraction

    under = what_if.fixed(edit, scenario).fixed.value_ns
    program = build_program(edit.apply(trace), costs=costs)
    typical = Scenario(without=scenario.without, is_captured=scenario.is_captured)
    many = simulate((program,), (GPU,), HOST, scenarios=(typical,))
    assert under == pytest.approx(many.step_ns.item(), rel=1e-9, abs=1e-9)


@given(EVENTS, COSTS, SCENARIOS, st.integers(1, 8))
def test_the_critical_path_comes_round_and_takes_its_steps(
    events: list[Event], costs: MadeUpCosts, scenario: Scenario, queue_depth: int
) -> None:
    program = build_program(StepTrace(events=tuple(events)), costs=costs)
    step = price(cost_table((program,), (GPU,), HOST), (scenario,), is_merged=False)
    repeated = RepeatedStep(step, queue_depth)
    path, period_ns = critical_path(repeated), repeated.period_ns.item()

    if period_ns > 0:
        assert path.num_steps > 0
        total_ns = sum(piece.time_ns for piece in path.pieces)
        assert total_ns == pytest.approx(path.num_steps * period_ns, rel=1e-3, abs=1e-6)


@given(EVENTS, COSTS, _LOSSES)
def test_parts_add_up_to_the_step(
    events: list[Event], costs: MadeUpCosts, loss_fraction: float
) -> None:
    costs = dataclasses.replace(costs, overlap_loss_fraction=loss_fraction)
    trace = StepTrace(events=tuple(events))
    what_if = WhatIf(build_program(trace, costs=costs), GPU, HOST)
    found = what_if.attribution()

    assert found.step_ns == round(what_if.step.value_ns)
    assert sum(part.time_ns for part in found.parts) == found.step_ns
    assert all(part.time_ns > 0 for part in found.parts)
    places = [(p.cause, p.phase, p.module, p.file, p.line) for p in found.parts]
    assert len(set(places)) == len(places)
    assert sum(found.by(lambda part: part.phase).values()) == found.step_ns


@given(EVENTS, COSTS)
def test_the_events_of_the_critical_path_alone_take_as_long_as_the_step(
    events: list[Event], costs: MadeUpCosts
) -> None:
    # An event that takes no time at all is on no path.
    costs = dataclasses.replace(
        costs, sync_ns=costs.sync_ns + 1, latency_ns=costs.latency_ns + 1, copy_fixed_ns=1
    )
    what_if = WhatIf(build_program(StepTrace(events=tuple(events)), costs=costs), GPU, HOST)
    critical = {event for event, _ in what_if.critical_events()}
    others = set(range(len(events))) - critical

    step_ns = what_if.step.value_ns
    without_others = what_if.fixed(Edit(replaced=dict.fromkeys(others, ()))).fixed.value_ns
    assert without_others == pytest.approx(step_ns, rel=1e-3, abs=1e-6)
    assert what_if.fixed(Edit(replaced=dict.fromkeys(critical, ()))).fixed.value_ns <= (
        step_ns * (1 + 1e-3) + 1e-6
    )


@given(st.lists(OPS, min_size=1), COSTS)
def test_the_slower_timeline_is_where_the_time_goes(ops: list[Op], costs: MadeUpCosts) -> None:
    def causes(host_ns: int, kernel_ns: int) -> frozenset[str]:
        times = {"host_ns": host_ns, "kernel_ns": [kernel_ns]}
        events = tuple(
            msgspec.structs.replace(one, attributes={**one.attributes, **times}) for one in ops
        )
        what_if = WhatIf(build_program(StepTrace(events=events), costs=costs), GPU, HOST)
        return frozenset(what_if.attribution().by(lambda part: part.cause))

    assert causes(9000, 10) <= {"python", "dispatcher", "launch", "optimizer"}
    assert causes(10, 9000) <= {"device-elementwise", "device-idle"}

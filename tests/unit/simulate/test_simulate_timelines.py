"""Timelines worked out by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
from msgspec.structs import replace

from breakeven.cost import REPLAYED_LOG_SIGMA
from breakeven.simulate import (
    CAPTURED,
    TYPICAL,
    Z_90,
    Bound,
    RepeatedStep,
    Scenario,
    build_program,
    cost_table,
    price,
    simulate,
)
from breakeven.simulate.program import FAST, SLOW
from breakeven.simulate.timelines import Timeline, Timelines, timeline_of
from breakeven.trace import Copy, Event, GraphLaunch, HostWork, Op, Phase, StepTrace, Sync
from factories.steps import GPU, HOST, MadeUpCosts, made_up_device, op


def run(*events: Event, queue_depth: int = 1024, **costs: float) -> Timelines:
    program = build_program(StepTrace(events=events), costs=MadeUpCosts(**costs))
    return simulate((program,), (GPU,), HOST, queue_depth=queue_depth)


def timeline_of_step(*events: Event, queue_depth: int = 1024, **costs: float) -> Timeline:
    program = build_program(StepTrace(events=events), costs=MadeUpCosts(**costs))
    table = cost_table((program,), (GPU,), HOST)
    return timeline_of(table, RepeatedStep(price(table, is_merged=False), queue_depth))


def step_ns(*events: Event, queue_depth: int = 1024, **costs: float) -> float:
    return run(*events, queue_depth=queue_depth, **costs).step_ns.item()


def copy(num_bytes: int, *, is_queued: bool = False) -> Copy:
    return Copy(
        source="cpu",
        destination="cuda:0",
        num_bytes=num_bytes,
        is_pinned=is_queued,
        non_blocking=is_queued,
    )


SYNC = Sync(kind="item", num_bytes=4)


def test_slow_host_hides_the_kernels() -> None:
    assert step_ns(op(10, host_ns=100), op(20, host_ns=100)) == 200


def test_slow_device_hides_the_host() -> None:
    assert step_ns(op(100, host_ns=10), op(200, host_ns=20)) == 300


def test_period_is_not_the_makespan_of_one_step() -> None:
    # One step alone ends at 30 + 300; the next one's host time overlaps with the device's lag.
    timeline = timeline_of_step(op(100, host_ns=10), op(200, host_ns=20))

    assert timeline.step_ns == 300
    assert timeline.host_busy_ns == 30
    assert timeline.device_busy_ns == 300


def test_sync_makes_host_and_device_take_turns() -> None:
    # Issue 10, 20: the first kernel runs 10-110, the second 110-310; sync returns at 310 + 5.
    assert step_ns(op(100, host_ns=10), op(200, host_ns=20), SYNC, sync_ns=5) == 315


def test_host_issues_ahead_until_the_sync() -> None:
    # Kernels 10-20, 60-70: the device waits for the host; sync at 70.
    assert step_ns(op(10, host_ns=10), op(10, host_ns=50), SYNC) == 70


def test_launch_and_latency_precede_a_kernel() -> None:
    # dispatch 10, launch 3, latency 4, kernel 100, then the sync's 5.
    costs = {"launch_ns": 3, "latency_ns": 4, "sync_ns": 5}
    assert step_ns(op(100, host_ns=10), SYNC, **costs) == 122


def test_latency_is_hidden_while_the_device_is_busy() -> None:
    # First kernel 4-104, the second was there long before: 104-204.
    assert step_ns(op(100), op(100), SYNC, latency_ns=4) == 204


def test_gap_separates_kernels() -> None:
    # 2-102 after the gap to the step before, 104-204.
    assert step_ns(op(100), op(100), gap_ns=2) == 204


def test_several_kernels_of_an_operator_are_launched_in_turn() -> None:
    # Dispatch 10; launches at 15 and 20; kernels 15-45 and 45-75.
    assert step_ns(op(30, 30, host_ns=10), SYNC, launch_ns=5) == 75


def test_launches_of_one_kernel_end_with_the_last_launch() -> None:
    # Four launches of 50 each; each part of 10 is done long before the next launch: 200 + 10.
    assert step_ns(op(40, launches=4), SYNC, launch_ns=50) == 210


def test_launches_of_one_kernel_queue_up_behind_the_first() -> None:
    # First launch at 5, then 4 x 100 with 3 gaps of 1 between; the step's first gap is hidden.
    assert step_ns(op(400, launches=4), SYNC, launch_ns=5, gap_ns=1) == 408


def test_view_costs_the_host_alone() -> None:
    assert step_ns(op(host_ns=7), op(1, host_ns=3)) == 10


def test_blocking_copy_waits_for_the_device() -> None:
    # Kernel 10-110, copy 110-160, kernel 170-180; the next step begins at 170 on the host.
    events = (op(100, host_ns=10), copy(50), op(10, host_ns=10))
    timeline = timeline_of_step(*events)

    # Host: 10 + wait 100 + copy 50 + 10.
    assert timeline.step_ns == 170
    assert timeline.host_busy_ns == 20
    assert timeline.device_busy_ns == 160


def test_pinned_copy_runs_beside_the_host() -> None:
    # The device is busy for 49 + 100 while the host issues for 120.
    assert step_ns(copy(50, is_queued=True), op(100, host_ns=120)) == 149


def test_queued_copy_pays_for_its_bytes_but_not_for_waiting() -> None:
    # 50 bytes less the one whose copy stands for the fixed cost: 49, then the kernel's 100.
    assert step_ns(copy(50, is_queued=True), op(100), copy_fixed_ns=1000) == 149


def test_fixed_cost_of_blocking_copies_counts() -> None:
    assert step_ns(copy(50), copy_fixed_ns=1000) == 1050


def test_nothing_to_copy_takes_no_time_on_the_device() -> None:
    assert step_ns(copy(0, is_queued=True), op(host_ns=10), copy_fixed_ns=0) == 10


def test_a_read_is_called_before_the_wait_and_copied_after_it() -> None:
    host = replace(HOST, view_ns=7)
    costs = MadeUpCosts(sync_ns=5, read_ns=20)

    def time_ns(*events: Event) -> float:
        program = build_program(StepTrace(events=events), costs=costs)
        return simulate((program,), (GPU,), host).step_ns.item()

    # Issued at 10, the kernel runs until 110: the call is hidden, the copy and the sync are not.
    assert time_ns(op(100, host_ns=10), SYNC) == 110 + 20 + 5
    assert time_ns(op(2, host_ns=10), SYNC) == 10 + 7 + 20 + 5
    assert time_ns(op(2, host_ns=10), Sync(kind="synchronize")) == 12 + 5


def test_large_read_takes_longer_than_a_value() -> None:
    assert step_ns(op(10), Sync(kind="cpu", num_bytes=108)) == 10 + 100
    assert step_ns(op(10), Sync(kind="item", num_bytes=8)) == 10


def test_host_operator_takes_its_recorded_time() -> None:
    events = (op(10, host_ns=10), op(host_ns=500, device="cpu"))
    assert step_ns(*events) == 510


def test_script_work_adds_to_the_host() -> None:
    assert step_ns(op(10, host_ns=10), HostWork(kind="script", duration_ns=300)) == 310


def test_loader_in_the_training_process_adds_to_the_host() -> None:
    assert step_ns(HostWork(kind="data", duration_ns=300), op(10, host_ns=10)) == 310


def test_loader_with_workers_overlaps() -> None:
    slow = HostWork(kind="data", duration_ns=300, num_workers=2)
    assert step_ns(slow, op(10, host_ns=10)) == 150
    fast = HostWork(kind="data", duration_ns=300, num_workers=100)
    assert step_ns(fast, op(10, host_ns=10)) == 10


def test_full_queue_makes_the_host_wait() -> None:
    # Four kernels of 100, then 350 of work on the host: with room for all, the device decides.
    kernels = (op(100), op(100), op(100), op(100))
    work = HostWork(kind="script", duration_ns=350)
    assert step_ns(*kernels, work) == 400

    # With a queue of two, launch n returns when kernel n - 2 has started. Let the first kernel
    # start at s. The second starts at s + 100, so the fourth launch returns then; host work
    # ends at s + 450, and the next first kernel starts there: the device is idle for 50.
    assert step_ns(*kernels, work, queue_depth=2) == 450


def test_queue_counts_every_launch_of_a_kernel() -> None:
    kernels = (op(200, launches=2), op(200, launches=2))
    work = HostWork(kind="script", duration_ns=350)
    assert step_ns(*kernels, work) == 400
    assert step_ns(*kernels, work, queue_depth=2) > 400


def test_a_queue_fills_over_the_end_of_a_step() -> None:
    # Two kernels after the sync and two of the next step: the fourth launch returns when the
    # second has started, 100 after the sync; then the script, and nothing is left to wait for.
    work = HostWork(kind="script", duration_ns=350)
    events = (op(100), op(100), work, SYNC, op(100), op(100))

    assert step_ns(*events, queue_depth=2) == 450
    assert timeline_of_step(*events, queue_depth=2).step_ns == 450


def test_captured_step_is_one_launch() -> None:
    events = (op(10, host_ns=100), op(20, host_ns=100))
    program = build_program(
        StepTrace(events=events), costs=MadeUpCosts(launch_ns=50, graph_launch_ns=7)
    )
    steps = simulate((program,), (GPU,), HOST, scenarios=(TYPICAL, CAPTURED)).step_ns

    assert steps[0, 0].tolist() == [300, 30]


def test_spans_tell_who_does_what_when() -> None:
    timeline = timeline_of_step(op(100, host_ns=10), op(20, host_ns=30), SYNC)

    spans = [(s.event, s.is_on_device, s.start_ns, s.end_ns) for s in timeline.spans]
    assert spans == [
        (0, False, 0, 10),
        (0, True, 10, 110),
        (1, False, 10, 40),
        (1, True, 110, 130),
        (2, False, 40, 130),
    ]


def test_programs_of_equal_structure_run_together() -> None:
    costs = MadeUpCosts(launch_ns=1)
    programs = [
        build_program(StepTrace(events=events), costs=costs)
        for events in (
            (op(100, host_ns=10), SYNC),
            (op(50, 50, host_ns=10), SYNC),  # one kernel more
            (op(host_ns=10), SYNC),  # none
            (op(100, host_ns=10),),  # of another structure
        )
    ]
    together = simulate(programs, (GPU, made_up_device("Other")), HOST)
    alone = [simulate((program,), (GPU,), HOST) for program in programs]

    assert together.step_ns[:, 0, 0].tolist() == [111, 111, 10, 100]
    assert together.step_ns[:, 1, 0].tolist() == [one.step_ns.item() for one in alone]
    assert together.host_busy_ns[:, 0, 0].tolist() == [11, 12, 10, 11]
    assert together.device_busy_ns[:, 0, 0].tolist() == [100, 100, 0, 100]


def test_deviation_scales_kernels_by_their_sigma() -> None:
    events = (op(100, sigma=0.5), op(100))
    program = build_program(StepTrace(events=events), costs=MadeUpCosts())
    steps = simulate((program,), (GPU,), HOST, scenarios=(TYPICAL, Scenario(deviation=1.0), SLOW))

    typical, one_sigma, slow = steps.step_ns[0, 0]
    assert typical == 200
    assert one_sigma == pytest.approx(100 * 2.718281828**0.5 + 100)
    assert slow == pytest.approx(100 * 2.718281828 ** (0.5 * 1.6449) + 100)


@pytest.mark.parametrize(
    ("bound", "expected"), [(Bound.LAUNCH, 1040), (Bound.COMPUTE, 1020), (Bound.SYNC, 40)]
)
def test_resources_can_be_free_of_charge(bound: Bound, expected: float) -> None:
    events = (op(40, host_ns=20), SYNC)
    program = build_program(StepTrace(events=events), costs=MadeUpCosts(sync_ns=1000))
    scenarios = (TYPICAL, Scenario(without=frozenset({bound})))
    typical, without = simulate((program,), (GPU,), HOST, scenarios=scenarios).step_ns[0, 0]

    assert typical == 1060
    assert without == expected


def test_optimizer_on_the_host_is_a_resource_of_its_own() -> None:
    events: tuple[Op, ...] = (
        op(10, host_ns=10),
        op(host_ns=70, device="cpu", phase=Phase.OPTIMIZER),
        op(host_ns=30, device="cpu"),
    )
    program = build_program(StepTrace(events=events), costs=MadeUpCosts())
    scenarios = [
        Scenario(without=frozenset({bound})) for bound in (Bound.HOST_OPTIMIZER, Bound.HOST_DATA)
    ]
    steps = simulate((program,), (GPU,), HOST, scenarios=scenarios).step_ns[0, 0]

    assert steps.tolist() == [40, 80]


def test_empty_step_takes_no_time() -> None:
    assert step_ns() == 0


def test_nothing_to_simulate_is_misuse() -> None:
    with pytest.raises(ValueError, match="at least one"):
        simulate((), (GPU,), HOST)


def test_a_graph_costs_the_host_one_launch_whatever_it_replays() -> None:
    replayed = [replace(op(10, 20, host_ns=100, launches=2), is_replayed=True) for _ in range(3)]
    result = run(GraphLaunch(), *replayed, graph_launch_ns=30, launch_ns=7)

    assert result.host_busy_ns.item() == 30
    assert result.device_busy_ns.item() == 90
    assert result.step_ns.item() == 90


def test_each_kernel_of_a_graph_waits_a_gap_and_the_first_a_latency() -> None:
    replayed = [replace(op(10), is_replayed=True), replace(op(12, launches=3), is_replayed=True)]
    timeline = run(SYNC, GraphLaunch(), *replayed, graph_launch_ns=30, latency_ns=5, gap_ns=2)

    # Launch, latency, the first; then three gaps, of which two lie within the second.
    assert timeline.step_ns.item() == 30 + 5 + 10 + 2 + 12 + 2 * 2


def test_a_launch_takes_another_time_in_a_graph() -> None:
    costs = {"gap_ns": 2, "floor_ns": 6, "replay_ns": 15}
    events = (op(10), op(30, launches=3))
    program = build_program(StepTrace(events=events), costs=MadeUpCosts(**costs))
    launched, captured = simulate((program,), (GPU,), HOST, scenarios=(TYPICAL, CAPTURED)).step_ns[
        0, 0
    ]
    replayed = [replace(event, is_replayed=True) for event in events]

    assert launched == 10 + 30 + 4 * 2
    # Work of 4 and 12 beside four launches.
    assert captured == 4 + 12 + 4 * (15 + 2)
    assert step_ns(GraphLaunch(), *replayed, **costs) == captured


def test_a_captured_step_is_less_certain_than_its_kernels() -> None:
    program = build_program(StepTrace(events=(op(0),) * 9), costs=MadeUpCosts(replay_ns=100))
    scenarios = [dataclasses.replace(each, is_captured=True) for each in (TYPICAL, FAST, SLOW)]
    typical, fast, slow = simulate((program,), (GPU,), HOST, scenarios=scenarios).step_ns[0, 0]

    assert typical == 900
    assert fast == pytest.approx(900 * math.exp(-Z_90 * REPLAYED_LOG_SIGMA))
    assert slow == pytest.approx(900 * math.exp(Z_90 * REPLAYED_LOG_SIGMA))


def test_a_graph_takes_no_room_in_the_launch_queue() -> None:
    replayed = [replace(op(50), is_replayed=True) for _ in range(4)]
    events = (GraphLaunch(), *replayed, HostWork(kind="script", duration_ns=150))

    assert step_ns(*events, graph_launch_ns=10, queue_depth=1) == 200


def test_in_a_captured_step_graphs_within_it_are_launched_with_it() -> None:
    program = build_program(
        StepTrace(events=(GraphLaunch(), replace(op(5), is_replayed=True))),
        costs=MadeUpCosts(graph_launch_ns=30),
    )
    result = simulate((program,), (GPU,), HOST, scenarios=(TYPICAL, CAPTURED))
    assert result.host_busy_ns.ravel().tolist() == [30, 30]

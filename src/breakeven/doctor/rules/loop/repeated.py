"""Loops of the script that are worth telling of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from breakeven.doctor.loop_flow import LoopFlow, flow_of
from breakeven.doctor.operators import base_name
from breakeven.doctor.repeated_loops import (
    RepeatedLoop,
    find_loops,
    is_launch,
    ops_at,
    typical_iteration,
)
from breakeven.doctor.rule import Case
from breakeven.doctor.sync_flow import SIMULATORS
from breakeven.source import dotted_name
from breakeven.trace import Copy, HostWork, Op, StepTrace, Sync

# A loop that issues less than this part of the step's operators is not worth a change.
_MIN_LAUNCH_FRACTION = 0.05
# An LSTM has three sigmoids and two hyperbolic tangents, a GRU two and one.
_MIN_GATE_SIGMOIDS = 2
# What asks a simulator for its next state.
_SIMULATOR = re.compile(SIMULATORS + r"\.(step|reset)$")


def is_over_time(trace: StepTrace, loop: RepeatedLoop, flow: LoopFlow) -> bool:
    """Return whether a loop is a recurrence over a sequence rather than a solver or layers."""
    if not flow.is_chained or flow.own_parameters:
        return False
    typical = typical_iteration(trace, loop.longest_run)
    names = [base_name(op) for op in ops_at(trace, typical)]
    is_gated = names.count("sigmoid") >= _MIN_GATE_SIGMOIDS and "tanh" in names
    return flow.reads_sequence or is_gated


def worthwhile(case: Case) -> Iterator[tuple[RepeatedLoop, LoopFlow]]:
    """Yield the loops that issue enough of the step, and stay on the device while they do."""
    trace = case.trace
    total = sum(map(is_launch, trace.events))
    for loop in find_loops(trace, case.sources):
        launches = num_launches_of(trace, loop.events)
        if launches < max(_MIN_LAUNCH_FRACTION * total, loop.num_iterations):
            continue
        if not _works_with_the_host(case, loop):
            yield loop, flow_of(trace, loop)


def num_launches_of(trace: StepTrace, events: tuple[int, ...]) -> int:
    """Return how many events the device is given."""
    return sum(is_launch(trace.events[index]) for index in events)


def _works_with_the_host(case: Case, loop: RepeatedLoop) -> bool:
    """Return whether iterations wait for a simulator, or feed one: a rollout, not a batch."""
    calls = (node for node in ast.walk(loop.node) if isinstance(node, ast.Call))
    if any(_SIMULATOR.search(dotted_name(call.func)) for call in calls):
        return True
    events = [[case.trace.events[index] for index in own] for own in loop.longest_run]
    pausing = sum(any(isinstance(event, HostWork) for event in own) for own in events)
    if 2 * pausing >= len(events):
        return True
    # Uploads what the network sees, then reads what it answers. A loss that asks the host for a
    # matching reads first.
    typical = [
        case.trace.events[index] for index in typical_iteration(case.trace, loop.longest_run)
    ]
    crossings = [event for event in typical if isinstance(event, Copy | Sync)]
    kinds = [isinstance(event, Copy) and event.is_to_device for event in crossings]
    return True in kinds and False in kinds[kinds.index(True) :]


def evidence_of(trace: StepTrace, loop: RepeatedLoop) -> str:
    """Return in words what each iteration issues."""
    typical = typical_iteration(trace, loop.longest_run)
    per_iteration = sum(isinstance(trace.events[index], Op) for index in typical)
    return (
        f"the same {per_iteration} operators are issued {loop.num_iterations} times in a row "
        f"from within this loop"
    )

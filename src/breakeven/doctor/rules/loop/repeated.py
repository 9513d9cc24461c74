"""Loops of the script that are worth telling of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from breakeven.doctor.loop_flow import LoopFlow, flow_of
from breakeven.doctor.repeated_loops import (
    RepeatedLoop,
    find_loops,
    is_launch,
    typical_iteration,
)
from breakeven.doctor.rule import Case, Occurrence
from breakeven.doctor.sync_flow import SIMULATORS
from breakeven.simulate import Edit
from breakeven.source import dotted_name
from breakeven.trace import Copy, HostWork, Op, StepTrace, Sync

# A loop that issues less than this part of the step's operators is not worth a change.
_MIN_LAUNCH_FRACTION = 0.05
# What asks a simulator for its next state.
_SIMULATOR = re.compile(SIMULATORS + r"\.(step|reset)$")


def worthwhile(case: Case) -> Iterator[tuple[RepeatedLoop, LoopFlow]]:
    """Yield the loops that issue enough of the step, and stay on the device while they do."""
    trace = case.trace
    total = sum(map(is_launch, trace.events))
    for loop in find_loops(trace, case.sources):
        launches = _num_launches(trace, loop)
        if launches < max(_MIN_LAUNCH_FRACTION * total, loop.num_iterations):
            continue
        if not _works_with_the_host(case, loop):
            yield loop, flow_of(trace, loop)


def occurrence_of(
    trace: StepTrace, loop: RepeatedLoop, *, what: str, fix: str, evidence: str, edit: Edit
) -> Occurrence:
    """Return what a rule tells of a loop.

    Args:
        trace: The step.
        loop: The loop.
        what: What issues the operators, and how often.
        fix: What to change.
        evidence: What is known of its iterations.
        edit: The step after the fix.
    """
    typical = typical_iteration(trace, loop.longest_run)
    per_iteration = sum(isinstance(trace.events[index], Op) for index in typical)
    return Occurrence(
        title=f"{what} issues {_num_launches(trace, loop)} small operators in every step",
        fix=fix,
        evidence=f"the same {per_iteration} operators are issued {loop.num_iterations} times in a "
        f"row from within this loop, {evidence}",
        location=loop.location,
        events=loop.events,
        edit=edit,
    )


def _num_launches(trace: StepTrace, loop: RepeatedLoop) -> int:
    return sum(is_launch(trace.events[index]) for index in loop.events)


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

"""What the script times, and the steps within."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress

from breakeven.doctor.device_source import compares_devices
from breakeven.doctor.rule import Case
from breakeven.doctor.rules.time.timed_file import TimedFile
from breakeven.doctor.rules.time.use import is_used, iterations
from breakeven.doctor.rules.time.walk import Timed, clock_readers, timed_work
from breakeven.source import LOOP_STATEMENTS, SourceFile, lines_of
from breakeven.trace import NEVER_ON_DEVICE, Copy, Event, Location, Op, Phase, Sync


def wrong_measurements(case: Case, is_wrong: Callable[[Timed], bool]) -> list[Timed]:
    """Return what the script times wrongly: the first that ends at each line."""
    found: dict[Location, Timed] = {}
    for timed in case.once(_measurements):
        if is_wrong(timed):
            found.setdefault(timed.end.location, timed)
    return list(found.values())


def _measurements(case: Case) -> list[Timed]:
    """Return what the script times and uses, with work of a device in it."""
    found: list[Timed] = []
    is_never = NEVER_ON_DEVICE in case.trace.caveats and not compares_devices(case.sources)
    if not case.trace.uses_device or is_never:
        return found  # a CPU is done when a call returns
    files = [_timed_file(case, source) for source in case.sources]
    readers = clock_readers(files)
    for file in files:
        # An expression may be nested a thousand times over, as programs write it.
        with suppress(RecursionError):
            if file.has_clocks or readers:
                found += filter(is_used, list(timed_work(file, readers)))
    return found


def _timed_file(case: Case, source: SourceFile) -> TimedFile:
    issuing: set[int] = set()
    waiting: set[int] = set()
    for event in case.trace.events:
        lines = [
            location.line
            for location in (*case.trace.stack_of(event), event.location)
            if location is not None and location.file == source.path
        ]
        if _waits(event):
            waiting.update(lines)
        elif isinstance(event, Op) and not event.is_on_host and event.phase is not Phase.DATA:
            issuing.update(lines)
    return TimedFile(
        source,
        issuing=issuing | _calls_of_holders(source, issuing),
        waiting=waiting | _calls_of_holders(source, waiting),
    )


def _calls_of_holders(source: SourceFile, lines: set[int]) -> set[int]:
    """Return the lines that call a function which holds one of ``lines``, by its name.

    The recorded steps may be over before the timed ones begin, which call the same.
    """
    found: set[int] = set()
    for _ in range(3):  # functions that call functions that work
        for function in source.nodes(ast.FunctionDef):
            if not (lines | found).isdisjoint(lines_of(function)):
                found.update(call.lineno for call in source.calls(function.name))
    return found


def _waits(event: Event) -> bool:
    return isinstance(event, Sync) or (
        isinstance(event, Copy) and not event.is_to_device and event.is_blocking
    )


def steps_within(case: Case, timed: Timed) -> tuple[int, int | None]:
    """Return how many loops over steps lie between the readings, and the innermost's iterations."""
    loops = _loops_within(case, timed)
    if not loops:
        return 0, None
    num_steps = iterations(*loops[-1])
    facts = case.facts.loaders
    if num_steps is None and facts and facts[0].batch_size:
        num_steps = facts[0].num_samples // facts[0].batch_size
    return len(loops), num_steps


def _loops_within(case: Case, timed: Timed) -> list[tuple[SourceFile, ast.AST]]:
    """Return the loops between the readings that lead to an update, the outermost first."""
    loops: list[tuple[SourceFile, ast.AST]] = []
    is_below = False
    for location in _way_to_update(case):
        holder = case.sources.find(location)
        if holder is None:
            continue
        for loop in reversed(holder.loops_around(location.line)):
            if isinstance(loop, LOOP_STATEMENTS) and (is_below or loop in timed.loops):
                loops.append((holder, loop))
        # All that the timed lines call lies between the readings.
        is_below = is_below or (holder is timed.source and location.line in timed.work)
    return loops


def _way_to_update(case: Case) -> tuple[Location, ...]:
    """Return the user's lines that lead to the first update of the step, the outermost first."""
    for event in case.trace.events:
        if isinstance(event, Op) and event.phase is Phase.OPTIMIZER:
            stack = case.trace.stack_of(event)
            return stack or ((event.location,) if event.location else ())
    return ()

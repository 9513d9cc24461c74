"""Events of a step by their position, as the rules ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from breakeven.trace import Copy, Event, Location, Op, StepTrace


def op_at(trace: StepTrace, index: int) -> Op:
    """Return the operator at a position that is known to hold one."""
    event = trace.events[index]
    assert isinstance(event, Op)
    return event


def copy_at(trace: StepTrace, index: int) -> Copy:
    """Return the copy at a position that is known to hold one."""
    event = trace.events[index]
    assert isinstance(event, Copy)
    return event


def line_of(place: Event | Location | None) -> tuple[str, int] | None:
    """Return file and line of an event or a location, for comparing."""
    location = place if isinstance(place, Location | None) else place.location
    return (location.file, location.line) if location else None


def lines_where(trace: StepTrace, test: Callable[[Event], bool]) -> frozenset[tuple[str, int]]:
    """Return the lines, where known, of the events that pass a test."""
    lines = (line_of(event) for event in trace.events if test(event))
    return frozenset(line for line in lines if line is not None)


def one_per_line(places: Iterable[Location | None]) -> list[Location | None]:
    """Return each line once, in the order of their first."""
    found: dict[tuple[str, int] | None, Location | None] = {}
    for place in places:
        found.setdefault(line_of(place), place)
    return list(found.values())

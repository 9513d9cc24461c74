"""What every rule about waits says of them."""

from __future__ import annotations

from collections.abc import Iterable

from breakeven.doctor.rule import Case, Found, Occurrence, by_line, times_per_step, without
from breakeven.trace import HostWork, Sync
from breakeven.units import format_bytes, format_duration


def by_waiting_line(case: Case, found: list[int], *, title: str, fix: str) -> Found:
    """Yield one occurrence for each line, whose fix is that these events are gone.

    Args:
        case: The step.
        found: Positions of syncs and of work of the host.
        title: One line, with ``{often}`` where it says how often.
        fix: What to change.
    """
    for location, events in by_line(case.trace, found):
        yield Occurrence(
            title=title.format(often=times_per_step(len(events))),
            fix=fix,
            evidence=seen(case, events),
            location=location,
            events=events,
            edit=without(events),
        )


def seen(case: Case, events: Iterable[int]) -> str:
    """Return in words what the step shows: kinds of waits, bytes, and who reads."""
    members = [case.trace.events[index] for index in events]
    syncs = [event for event in members if isinstance(event, Sync)]
    works = [event for event in members if isinstance(event, HostWork)]
    kinds = ", ".join(dict.fromkeys(sync.kind for sync in syncs))
    num_bytes = sum(sync.num_bytes for sync in syncs)
    via = ", ".join(dict.fromkeys(sync.via for sync in syncs if sync.via))
    host_ns = sum(work.duration_ns for work in works)
    parts = {
        f"{len(syncs)} wait{'s' * (len(syncs) > 1)} in the recorded step ({kinds})": syncs,
        f"{format_bytes(num_bytes)} read back": num_bytes,
        f"within {via}": via,
        f"{format_duration(host_ns, 2)} of the host in the recorded step": works,
    }
    return ", ".join(text for text, is_there in parts.items() if is_there)

"""What every rule about waits says of them."""

from __future__ import annotations

from breakeven.doctor.rule import Case, Occurrence, by_line, times_per_step
from breakeven.simulate import Edit
from breakeven.trace import HostWork, Sync
from breakeven.units import format_bytes, format_duration


def occurrences(case: Case, found: list[int], *, title: str, fix: str) -> tuple[Occurrence, ...]:
    """Return one occurrence for each line, whose fix is that these events are gone.

    Args:
        case: The step.
        found: Positions of syncs and of work of the host.
        title: One line, with ``{often}`` where it says how often.
        fix: What to change.
    """
    return tuple(
        Occurrence(
            title=title.format(often=times_per_step(len(events))),
            fix=fix,
            evidence=seen(case, events),
            location=location,
            events=events,
            edit=Edit(replaced=dict.fromkeys(events, ())),
        )
        for location, events in by_line(case.trace, found)
    )


def seen(case: Case, events: tuple[int, ...]) -> str:
    """Return in words what the step shows: kinds of waits, bytes, and who reads."""
    members = [case.trace.events[index] for index in events]
    syncs = [event for event in members if isinstance(event, Sync)]
    others = [event for event in members if isinstance(event, HostWork)]
    kinds = ", ".join(dict.fromkeys(sync.kind for sync in syncs))
    num_bytes = sum(sync.num_bytes for sync in syncs)
    via = ", ".join(dict.fromkeys(sync.via for sync in syncs if sync.via))
    parts: list[str] = []
    if syncs:
        parts.append(f"{len(syncs)} wait{'s' * (len(syncs) > 1)} in the recorded step ({kinds})")
    if num_bytes:
        parts.append(f"{format_bytes(num_bytes)} read back")
    if via:
        parts.append(f"within {via}")
    if others:
        total_ns = sum(work.duration_ns for work in others)
        parts.append(f"{format_duration(total_ns, 2)} of the host in the recorded step")
    return ", ".join(parts)

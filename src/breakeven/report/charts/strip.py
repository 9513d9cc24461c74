"""Both timelines of a step as cells: what each side mostly does, and which one is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.report.builders.explain_words import CauseGroup, group_of
from breakeven.verdict import DEVICE_TRACK, HOST_TRACK, TimelineSpan

TRACKS = (HOST_TRACK, DEVICE_TRACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class StripCell:
    """A slice of time on one track.

    Args:
        group: What takes the most of it; None where nothing happens.
        busy_fraction: Part of the slice in which something happens.
    """

    group: CauseGroup | None
    busy_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Two timelines, cut into slices of the same length.

    Args:
        end_ns: Where the last slice ends.
        tracks: The slices of each track.
        critical: For each slice the track that the end of the step waits for; empty for neither.
    """

    end_ns: float
    tracks: dict[str, tuple[StripCell, ...]]
    critical: tuple[str, ...]

    @property
    def groups(self) -> tuple[CauseGroup, ...]:
        """Return the groups that occur, in the order of the legend."""
        shown = {cell.group for cells in self.tracks.values() for cell in cells}
        return tuple(group for group in CauseGroup if group in shown)


def timeline_end_ns(spans: Sequence[TimelineSpan]) -> float:
    """Return when the last of ``spans`` ends; 0 without any."""
    return max((span.end_ns for span in spans), default=0.0)


def timeline_strip(spans: Sequence[TimelineSpan], num_cells: int) -> Strip | None:
    """Return a timeline as so many slices, or None where it holds no time.

    Args:
        spans: What happens on both timelines.
        num_cells: At least 1.
    """
    end_ns = timeline_end_ns(spans)
    if end_ns <= 0:
        return None
    cell_ns = end_ns / num_cells
    by_group = {track: [dict[CauseGroup, float]() for _ in range(num_cells)] for track in TRACKS}
    critical_ns = {track: [0.0] * num_cells for track in TRACKS}
    for span in spans:
        if span.track not in by_group:
            continue
        group = group_of(span.cause)
        first = min(int(span.start_ns / cell_ns), num_cells - 1)
        last = min(int(span.end_ns / cell_ns), num_cells - 1)
        for number in range(first, last + 1):
            begin, end = number * cell_ns, (number + 1) * cell_ns
            part_ns = min(span.end_ns, end) - max(span.start_ns, begin)
            if part_ns <= 0:
                continue
            cell = by_group[span.track][number]
            cell[group] = cell.get(group, 0.0) + part_ns
            if span.is_critical:
                critical_ns[span.track][number] += part_ns
    return Strip(
        end_ns=end_ns,
        tracks={
            track: tuple(_cell(cell, cell_ns) for cell in cells)
            for track, cells in by_group.items()
        },
        critical=tuple(
            _critical(host, device)
            for host, device in zip(*(critical_ns[track] for track in TRACKS), strict=True)
        ),
    )


def _cell(by_group: dict[CauseGroup, float], cell_ns: float) -> StripCell:
    if not by_group:
        return StripCell(group=None, busy_fraction=0.0)
    group = max(by_group, key=lambda group: by_group[group])
    return StripCell(group=group, busy_fraction=min(sum(by_group.values()) / cell_ns, 1.0))


def _critical(host_ns: float, device_ns: float) -> str:
    if max(host_ns, device_ns) <= 0:
        return ""
    return HOST_TRACK if host_ns >= device_ns else DEVICE_TRACK

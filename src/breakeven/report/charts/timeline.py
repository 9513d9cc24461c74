"""Both timelines of a step: cut into cells for a strip, and laid out for a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from breakeven.report.cause_text import CauseGroup, cause_words, group_of
from breakeven.report.charts.svg import WIDTH
from breakeven.report.phrase import place_of
from breakeven.report.text import printable, shorten
from breakeven.units import format_duration
from breakeven.verdict import DEVICE_TRACK, HOST_TRACK, TimelineSpan

_LEFT, _RIGHT, _TOP = 60, 12, 6
_ROW_HEIGHT, _ROW_GAP = 36, 26
_HEIGHT = _TOP + 2 * _ROW_HEIGHT + _ROW_GAP + 26
# A narrower box can neither be seen nor pointed at alone: those of one colour are one path.
_LEAST_TITLED_WIDTH = 1.5
_LEAST_WIDTH = 0.3
_NUM_TICKS = 4
# Corners of the line that tells which side the end waits for.
_NUM_CRITICAL_CELLS = 220
_MAX_TITLE_CHARACTERS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgSpan:
    """A span that is wide enough to be pointed at."""

    x: float
    y: float
    width: float
    css_class: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgTimeline:
    """Both timelines, ready for the template.

    Args:
        width: Of the view box.
        height: Of the view box.
        row_height: Of a track.
        row_labels: Name and vertical middle of each track.
        spans: Boxes that can be pointed at.
        small_spans: Colour and path of all others.
        critical: Path along the side that the end of the step waits for.
        ticks: Position and label of points in time.
        legend: Colour and meaning.
        description: The same in words.
    """

    width: float
    height: float
    row_height: float
    row_labels: tuple[tuple[str, float], ...]
    spans: tuple[SvgSpan, ...]
    small_spans: tuple[tuple[str, str], ...]
    critical: str
    ticks: tuple[tuple[float, str], ...]
    legend: tuple[tuple[str, str], ...]
    description: str


def svg_timeline(timeline: Sequence[TimelineSpan], description: str) -> SvgTimeline | None:
    """Return the geometry of both timelines, or None where they hold no time.

    Args:
        timeline: What happens on both.
        description: What they show, for those who do not see it.
    """
    strip = timeline_strip(timeline, _NUM_CRITICAL_CELLS)
    if strip is None:
        return None
    frame = _Frame(end_ns=timeline_end_ns(timeline))
    boxes: list[SvgSpan] = []
    small: dict[CauseGroup, list[str]] = {}
    for span in timeline:
        if span.track not in TRACKS or span.end_ns < span.start_ns:
            continue
        x = frame.x(span.start_ns)
        width = max(frame.x(span.end_ns) - x, _LEAST_WIDTH)
        group, y = group_of(span.cause), _row_y(span.track)
        if width < _LEAST_TITLED_WIDTH:
            box = f"M{x:g},{y}h{width:.1f}v{_ROW_HEIGHT}h-{width:.1f}z"
            small.setdefault(group, []).append(box)
        else:
            css_class = group.value.css_class
            boxes.append(
                SvgSpan(x=x, y=y, width=round(width, 1), css_class=css_class, title=_title(span))
            )
    used = {group_of(span.cause) for span in timeline}
    return SvgTimeline(
        width=WIDTH,
        height=_HEIGHT,
        row_height=_ROW_HEIGHT,
        row_labels=tuple((track, _row_y(track) + _ROW_HEIGHT / 2) for track in TRACKS),
        spans=tuple(boxes),
        small_spans=tuple(
            (group.value.css_class, "".join(parts)) for group, parts in small.items()
        ),
        critical=_critical(strip, frame),
        ticks=tuple(_ticks(frame)),
        legend=tuple(
            (group.value.css_class, group.value.word) for group in CauseGroup if group in used
        ),
        description=description,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Where points in time are."""

    end_ns: float

    def x(self, time_ns: float) -> float:
        return round(_LEFT + time_ns / self.end_ns * (WIDTH - _LEFT - _RIGHT), 1)


def _row_y(track: str) -> int:
    return _TOP + TRACKS.index(track) * (_ROW_HEIGHT + _ROW_GAP)


def _title(span: TimelineSpan) -> str:
    place = place_of(span.file, span.line)
    parts = [
        printable(span.name, 60),
        format_duration(span.end_ns - span.start_ns),
        cause_words(span.cause),
        printable(span.phase, 20),
        shorten(printable(span.module, None), 60),
        "" if place is None else place.text(60),
    ]
    return shorten(" · ".join(part for part in parts if part), _MAX_TITLE_CHARACTERS)


def _critical(strip: Strip, frame: _Frame) -> str:
    """Return a line below the host or above the device, whichever is waited for."""
    middle = _TOP + _ROW_HEIGHT + _ROW_GAP / 2
    cell_ns = strip.end_ns / len(strip.critical)
    path: list[str] = []
    last = ""
    for number, track in enumerate(strip.critical):
        if not track:
            last = ""
            continue
        y = middle - 8 if track == HOST_TRACK else middle + 8
        if not last:
            path.append(f"M{frame.x(number * cell_ns):g},{y:g}")
        elif track != last:
            path.append(f"V{y:g}")
        path.append(f"H{frame.x((number + 1) * cell_ns):g}")
        last = track
    return "".join(path)


def _ticks(frame: _Frame) -> Iterator[tuple[float, str]]:
    for number in range(_NUM_TICKS + 1):
        time_ns = frame.end_ns * number / _NUM_TICKS
        yield frame.x(time_ns), format_duration(time_ns, 2) if number else "0"


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
            _awaited(host, device)
            for host, device in zip(*(critical_ns[track] for track in TRACKS), strict=True)
        ),
    )


def _cell(by_group: dict[CauseGroup, float], cell_ns: float) -> StripCell:
    if not by_group:
        return StripCell(group=None, busy_fraction=0.0)
    group = max(by_group, key=lambda group: by_group[group])
    return StripCell(group=group, busy_fraction=min(sum(by_group.values()) / cell_ns, 1.0))


def _awaited(host_ns: float, device_ns: float) -> str:
    if max(host_ns, device_ns) <= 0:
        return ""
    return HOST_TRACK if host_ns >= device_ns else DEVICE_TRACK

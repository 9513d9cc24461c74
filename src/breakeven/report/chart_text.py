"""Charts and timelines in a terminal: curves in braille dots, points as letters.

All parts are readable without colour. This is our own code: plotille has no logarithmic axes, no
round ticks and no output without Unicode, and plotext changed its whole interface in version 6.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from rich.text import Text

from breakeven.report.chart import Chart, ChartPoint, value_axis
from breakeven.report.explain_report import DEVICE_TRACK, HOST_TRACK, TimelineSpan
from breakeven.report.text import printable, shorten
from breakeven.report.timeline import TRACKS, CauseGroup, Strip
from breakeven.timing import Source
from breakeven.units import format_duration

# Dots of a braille character by column and row, from U+2800 on.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "red")
# Letters closer than this hide the shape of the curve.
_LETTER_GAP = 4
_LABEL_CHARACTERS = 9
_STRIP_CELLS = (8, 160)


def chart_text(chart: Chart, *, num_columns: int, num_rows: int, is_ascii: bool = False) -> Text:
    """Return ``chart`` as lines of text.

    Args:
        chart: The chart to draw, with at most 26 series.
        num_columns: Width, including the labels of the axis.
        num_rows: Height of the plot without axis and legend.
        is_ascii: Draw without braille and box-drawing characters.
    """
    # If the step does not fit the device, its time cannot be compared.
    curves = [[one for one in series.points if not one.is_too_big] for series in chart.series]
    times_ns = [point.step_ns for points in curves for point in points]
    if times_ns:  # a terminal has no room for intervals
        y = value_axis(chart.y.label, times_ns, chart.y.as_text, chart.y.unit)
        chart = dataclasses.replace(chart, y=y)
    across, down = (1, 1) if is_ascii else (2, 4)
    ticks: dict[int, str] = {}
    for tick in chart.y.ticks:
        row = round((1 - chart.y.position(tick.value)) * (num_rows - 1))
        if not {row - 1, row, row + 1} & ticks.keys():
            ticks[row] = printable(tick.label)
    margin = max(map(len, ticks.values()), default=0)
    width = max(num_columns - margin - 2, 8)

    def dot(x: float, step_ns: float) -> tuple[int, int]:
        x_share, y_share = chart.x.position(x), 1 - chart.y.position(step_ns)
        return round(x_share * (width * across - 1)), round(y_share * (num_rows * down - 1))

    def column(x: float) -> int:
        return round(chart.x.position(x) * (width - 1))

    drawn = list(zip(curves, _LETTERS, itertools.cycle(_STYLES), strict=False))
    dots: dict[tuple[int, int], tuple[int, str]] = {}
    for points, _, style in drawn:
        places = [dot(point.x, point.step_ns) for point in points]
        for (x0, y0), (x1, y1) in itertools.pairwise(places):
            num_steps = max(abs(x1 - x0), abs(y1 - y0), 1)
            for step in range(num_steps + 1):
                x, y = (round(a + (b - a) * step / num_steps) for a, b in ((x0, x1), (y0, y1)))
                bits, _ = dots.get((y // down, x // across), (0, ""))
                bits |= _DOTS[x % across][y % down]
                dots[y // down, x // across] = (bits, style)
    letters: dict[tuple[int, int], tuple[str, str]] = {}
    for points, letter, style in drawn:
        last = -_LETTER_GAP
        for point in points:
            if column(point.x) - last >= _LETTER_GAP or point is points[-1]:
                last, row = column(point.x), dot(point.x, point.step_ns)[1] // down
                is_measured = point.source is Source.MEASURED
                letters[row, last] = (letter.upper() if is_measured else letter, style)
    cross = "X" if is_ascii else "╳"
    for mark in chart.crossovers:
        for series, points in zip(chart.series, curves, strict=True):
            if series.style == mark.style and points:
                height_ns = _height_ns(chart, points, mark.x)
                letters[dot(mark.x, height_ns)[1] // down, column(mark.x)] = (cross, "bold")

    lines: list[Text] = []
    for row in range(num_rows):
        bar = " |" if is_ascii else " ┤" if row in ticks else " │"
        line = Text.assemble((ticks.get(row, "").rjust(margin) + bar, "dim"))
        for x in range(width):
            bits, style = dots.get((row, x), (0, ""))
            dotted = "." if is_ascii else chr(0x2800 + bits)
            line.append(*letters.get((row, x), (dotted if bits else " ", style)))
        line.rstrip()
        lines.append(line)
    rule = ["-" if is_ascii else "─"] * width
    labels, free_from = [" "] * (margin + 2 + width), 0
    for tick in chart.x.ticks:
        label, middle = printable(tick.label, 20), margin + 2 + column(tick.value)
        start = min(max(middle - len(label) // 2, free_from), len(labels) - len(label))
        if start >= free_from and abs(start + len(label) // 2 - middle) <= len(label):
            rule[column(tick.value)] = "+" if is_ascii else "┴"
            labels[start : start + len(label)] = label
            free_from = start + len(label) + 2
    for mark in chart.crossovers:
        rule[column(mark.x)] = "^" if is_ascii else "▲"
    corner = " +" if is_ascii else " └"
    lines += [Text(" " * margin + corner + "".join(rule), style="dim")]
    lines += [Text("".join(labels).rstrip(), style="dim")]
    legend = [
        Text.assemble((letter, f"bold {style}"), " ", shorten(series.name, 30))
        for series, (_, letter, style) in zip(chart.series, drawn, strict=False)
    ]
    if len({point.source for points in curves for point in points}) > 1:
        legend.append(Text("CAPITAL measured, small predicted", style="dim"))
    if chart.crossovers:
        legend.append(Text.assemble((cross, "bold"), (" crossover", "dim")))
    return Text("\n").join([*lines, *_flowing(legend, num_columns)])


def _height_ns(chart: Chart, points: Sequence[ChartPoint], x: float) -> float:
    """Return the step time at ``x`` on the drawn line between two points."""
    for left, right in itertools.pairwise(points):
        if left.x <= x <= right.x:
            start, end = chart.x.position(left.x), chart.x.position(right.x)
            share = (chart.x.position(x) - start) / (end - start)
            return left.step_ns ** (1 - share) * right.step_ns**share
    return min(points, key=lambda point: abs(point.x - x)).step_ns


def _flowing(entries: Iterable[Text], width: int) -> list[Text]:
    """Return entries of a legend as lines, broken only between entries."""
    lines = [Text(overflow="fold")]
    for entry in entries:
        gap = 3 if lines[-1].cell_len else 0
        if gap and lines[-1].cell_len + gap + entry.cell_len > width:
            lines.append(Text(overflow="fold"))
            gap = 0
        lines[-1].append(" " * gap).append_text(entry)
    return lines


def strip_text(spans: Sequence[TimelineSpan], width: int, *, is_ascii: bool = False) -> list[Text]:
    """Return both timelines as rows of letters, with axis and legend.

    A cell has the letter and colour of its longest cause, in lower case if less than half of it is
    busy.

    Args:
        spans: Spans, at least one of which ends after 0.
        width: Width of the terminal.
        is_ascii: Draw without arrows.
    """
    least, most = _STRIP_CELLS
    num_cells = max(min(width - _LABEL_CHARACTERS, most), least)
    strip = Strip(spans, num_cells)
    up, down = ("^", "v") if is_ascii else ("▲", "▼")
    lines: list[Text] = []
    for track in TRACKS:
        line = Text(track.ljust(_LABEL_CHARACTERS), style="dim")
        for group, busy_fraction in strip.tracks[track]:
            letter, style = (".", "") if group is None else (group.letter, f"not dim {group.style}")
            line.append(letter if busy_fraction >= 0.5 else letter.lower(), style)
        lines.append(line)
    arrows = {HOST_TRACK: up, DEVICE_TRACK: down, "": " "}
    marks = "".join(arrows[side] for side in strip.critical)
    lines.append(Text("critical".ljust(_LABEL_CHARACTERS) + marks, style="dim"))
    # 0, the middle and the end, if there is room for them.
    end, middle = format_duration(strip.end_ns, 2), format_duration(strip.end_ns / 2, 2)
    axis, at_middle = "0", num_cells // 2 - len(middle) // 2
    if at_middle > 2 and at_middle + len(middle) + 2 < num_cells - len(end):
        axis = axis.ljust(at_middle) + middle
    axis = shorten(axis.ljust(num_cells - len(end)) + end, num_cells)
    lines.append(Text(" " * _LABEL_CHARACTERS + axis, style="dim"))
    for line in lines:
        line.no_wrap = True
    shown = {group for cells in strip.tracks.values() for group, _ in cells}
    legend = [
        Text.assemble((group.letter, group.style), (f" {group.word}", "dim"))
        for group in CauseGroup
        if group in shown
    ]
    legend.append(Text(f"{up}{down} the side that the end waits for", style="dim"))
    legend.append(Text("lower case: less than half of it busy", style="dim"))
    return [*lines, *_flowing(legend, width)]

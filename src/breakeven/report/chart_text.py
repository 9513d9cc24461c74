"""Charts and timelines in a terminal: curves in braille dots, points as letters.

All parts are readable without colour. This is our own code: plotille has no logarithmic axes, no
round ticks and no output without Unicode, and plotext changed its whole interface in version 6.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from rich.text import Text

from breakeven.report.chart import Chart, speed_axis, value_axis
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


def chart_text(chart: Chart, *, num_columns: int, num_rows: int) -> Text:
    """Return ``chart`` as lines of text.

    Args:
        chart: The chart to draw, with at most 26 series.
        num_columns: Width, including the labels of the axis.
        num_rows: Height of the plot without axis and legend.
    """
    chart = chart.shown
    curves = [series.curve for series in chart.series]
    if values := [point.value for points in curves for point in points]:
        # A terminal has no room for intervals.
        if chart.rival:
            y = speed_axis(chart.rival, values)
        else:
            y = value_axis(chart.y.label, values, chart.y.as_text)
        chart = dataclasses.replace(chart, y=y)
    across, down = 2, 4  # dots of a character

    def dot_row(value: float) -> int:
        return round((1 - chart.y.position(value)) * (num_rows * down - 1))

    ticks: dict[int, str] = {}
    # The speed 1 keeps its label if others are too close to it.
    for tick in sorted(chart.y.ticks, key=lambda tick: abs(math.log(tick.value or 1.0))):
        row = dot_row(tick.value) // down
        if not {row - 1, row, row + 1} & ticks.keys():
            ticks[row] = printable(tick.label)
    margin = max(map(len, ticks.values()), default=0)
    width = max(num_columns - margin - 2, 8)

    def dot(x: float, value: float) -> tuple[int, int]:
        return round(chart.x.position(x) * (width * across - 1)), dot_row(value)

    def column(x: float) -> int:
        return round(chart.x.position(x) * (width - 1))

    drawn = list(zip(curves, _LETTERS, itertools.cycle(_STYLES), strict=False))
    dots: dict[tuple[int, int], tuple[int, str]] = {}
    for points, _, style in drawn:
        # The CPU that all are compared with is the bold line.
        is_rival = chart.rival and all(point.value == 1 for point in points)
        places = [] if is_rival else [dot(point.x, point.value) for point in points]
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
                last, row = column(point.x), dot_row(point.value) // down
                is_measured = point.source is Source.MEASURED
                letters[row, last] = (letter.upper() if is_measured else letter, style)
    for series, (_, _, style) in zip(chart.series, drawn, strict=False):
        for point in series.too_big:
            letters.setdefault((num_rows - 1, column(point.x)), ("!", f"bold {style}"))
    rival_row = dot_row(1.0) // down if chart.rival else num_rows
    for mark in chart.crossovers:
        letters[rival_row, column(mark.x)] = ("╳", "bold")

    lines: list[Text] = []
    if chart.rival:
        above = f"above 1×, a device is faster than {shorten(chart.rival, 24)}"
        lines.append(Text(f"{' ' * margin}  {above}", style="dim"))
    for row in range(num_rows):
        bar = " ┤" if row in ticks else " │"
        line = Text.assemble((ticks.get(row, "").rjust(margin) + bar, "dim"))
        for x in range(width):
            bits, style = dots.get((row, x), (0, ""))
            empty = ("━", "bold") if row == rival_row else (" ", "")
            line.append(*letters.get((row, x), (chr(0x2800 + bits), style) if bits else empty))
        line.rstrip()
        lines.append(line)
    rule = ["─"] * width
    labels, free_from = [" "] * (margin + 2 + width), 0
    for tick in chart.x.ticks:
        label, middle = printable(tick.label, 20), margin + 2 + column(tick.value)
        start = min(max(middle - len(label) // 2, free_from), len(labels) - len(label))
        if start >= free_from and abs(start + len(label) // 2 - middle) <= len(label):
            rule[column(tick.value)] = "┴"
            labels[start : start + len(label)] = label
            free_from = start + len(label) + 2
    for mark in chart.crossovers:
        high = chart.x.high if mark.high is None else mark.high
        for place in range(column(mark.low), column(high) + 1):
            rule[place] = "━" if rule[place] == "─" else rule[place]
        rule[column(mark.x)] = "▲"
    lines += [Text(" " * margin + " └" + "".join(rule), style="dim")]
    lines += [Text("".join(labels).rstrip(), style="dim")]
    legend = [
        Text.assemble((letter, f"bold {style}"), " ", shorten(series.label, 44))
        for series, (_, letter, style) in zip(chart.series, drawn, strict=False)
    ]
    if len({point.source for points in curves for point in points}) > 1:
        legend.append(Text("CAPITAL measured, small predicted", style="dim"))
    if chart.too_big_for:
        legend.append(Text(f"! {chart.too_big_for}", style="dim"))
    if chart.crossovers:
        legend.append(
            Text.assemble(("╳▲", "bold"), (" crossover, ━ its interval on the axis", "dim"))
        )
    return Text("\n").join([*lines, *_flowing(legend, num_columns)])


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


def strip_text(spans: Sequence[TimelineSpan], width: int) -> list[Text]:
    """Return both timelines as rows of letters, with axis and legend.

    A cell has the letter and colour of its longest cause, in lower case if less than half of it is
    busy.

    Args:
        spans: Spans, at least one of which ends after 0.
        width: Width of the terminal.
    """
    least, most = _STRIP_CELLS
    num_cells = max(min(width - _LABEL_CHARACTERS, most), least)
    strip = Strip(spans, num_cells)
    lines: list[Text] = []
    for track in TRACKS:
        line = Text(track.ljust(_LABEL_CHARACTERS), style="dim")
        for group, busy_fraction in strip.tracks[track]:
            letter, style = (".", "") if group is None else (group.letter, f"not dim {group.style}")
            line.append(letter if busy_fraction >= 0.5 else letter.lower(), style)
        lines.append(line)
    arrows = {HOST_TRACK: "▲", DEVICE_TRACK: "▼", "": " "}
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
    legend.append(Text("▲▼ the side that the end waits for", style="dim"))
    legend.append(Text("lower case: less than half of it busy", style="dim"))
    return [*lines, *_flowing(legend, width)]

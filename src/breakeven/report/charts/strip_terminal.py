"""The timeline strip at a terminal: host above device, from the start of the step to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from breakeven.report.charts.strip import TRACKS, Strip, StripCell, timeline_strip
from breakeven.report.text import shorten
from breakeven.units import format_duration
from breakeven.verdict import DEVICE_TRACK, HOST_TRACK, TimelineSpan

# Height tells how much of a cell's time something happens in, from an eighth to all of it.
_HEIGHTS = "▁▂▃▄▅▆▇█"
_LABEL_CHARACTERS = 9
_MAX_CELLS = 160
_MIN_CELLS = 8


def strip_lines(spans: Sequence[TimelineSpan], console: Console) -> Iterator[Text]:
    """Yield the strip with its axis and legend; nothing where the timeline is empty.

    With colours, a cell has the colour of what takes the most of it, and is as high as it is busy;
    without, it is the letter of that, in lower case where less than half of the cell is busy.
    """
    num_cells = max(min(console.width - _LABEL_CHARACTERS, _MAX_CELLS), _MIN_CELLS)
    strip = timeline_strip(spans, num_cells)
    if strip is None:
        return
    yield from (_track(track, strip, console) for track in TRACKS)
    yield _critical(strip, console)
    yield _axis(strip, num_cells)
    yield _legend(strip, console)


def _uses_blocks(console: Console) -> bool:
    """Return whether colours tell causes apart, so that characters are free to be blocks."""
    has_colours = console.color_system is not None and not console.no_color
    return has_colours and not console.options.ascii_only


def _label(word: str) -> Text:
    return Text.assemble((word.ljust(_LABEL_CHARACTERS), "dim"))


def _track(track: str, strip: Strip, console: Console) -> Text:
    text = _label(track)
    for group, cells in groupby(strip.tracks[track], key=lambda cell: cell.group):
        characters = "".join(_character(cell, console) for cell in cells)
        text.append(characters, style="dim" if group is None else group.value.style)
    text.no_wrap = True
    return text


def _character(cell: StripCell, console: Console) -> str:
    if cell.group is None:
        return " " if _uses_blocks(console) else "."
    return _height(cell) if _uses_blocks(console) else _letter(cell)


def _height(cell: StripCell) -> str:
    return _HEIGHTS[min(int(cell.busy_fraction * len(_HEIGHTS)), len(_HEIGHTS) - 1)]


def _letter(cell: StripCell) -> str:
    letter = cell.group.value.letter if cell.group is not None else "."
    return letter if cell.busy_fraction >= 0.5 else letter.lower()


def _critical(strip: Strip, console: Console) -> Text:
    up, down = _arrows(console)
    marks = {HOST_TRACK: up, DEVICE_TRACK: down, "": " "}
    text = _label("critical")
    text.append("".join(marks[track] for track in strip.critical), style="dim")
    text.no_wrap = True
    return text


def _axis(strip: Strip, num_cells: int) -> Text:
    """Return 0, the middle and the end, as far as there is room for them."""
    end, middle = format_duration(strip.end_ns, 2), format_duration(strip.end_ns / 2, 2)
    line = "0"
    at_middle = num_cells // 2 - cell_len(middle) // 2
    if at_middle > 2 and at_middle + cell_len(middle) + 2 < num_cells - cell_len(end):
        line = line.ljust(at_middle) + middle
    line = shorten(line.ljust(num_cells - cell_len(end)) + end, num_cells)
    text = _label("")
    text.append(line, style="dim")
    text.no_wrap = True
    return text


def _legend(strip: Strip, console: Console) -> Text:
    """Return what colours, letters and arrows mean, broken between entries only."""
    mark = "█" if _uses_blocks(console) else None
    entries = [
        Text.assemble(
            (mark or group.value.letter, group.value.style), (f" {group.value.word}", "dim")
        )
        for group in strip.groups
    ]
    entries.append(
        Text("".join(_arrows(console)) + " the side that the end waits for", style="dim")
    )
    if mark is None:
        entries.append(Text("lower case: less than half of it busy", style="dim"))
    lines = [entries[0]]
    for entry in entries[1:]:
        if lines[-1].cell_len + 3 + entry.cell_len <= console.width:
            lines[-1] = Text.assemble(lines[-1], "   ", entry)
        else:
            lines.append(entry)
    return Text("\n", overflow="fold").join(lines)


def _arrows(console: Console) -> tuple[str, str]:
    return ("^", "v") if console.options.ascii_only else ("▲", "▼")

"""Where the time of a step goes, as bars at a terminal: by cause, by line, by module."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from breakeven.report.explain_parts import (
    CauseShare,
    LineShare,
    ModuleShare,
    cause_shares,
    line_shares,
    module_shares,
    phase_shares,
    short_names,
)
from breakeven.report.text import printable, shorten
from breakeven.units import format_duration, format_percent
from breakeven.verdict import ExplainReport

_EIGHTHS = " ▏▎▍▌▋▊▉"
_MAX_CAUSES = 9
_MAX_LINES = 6
_MAX_MODULES = 14
# Below one line, of what a framework does there.
_MAX_FRAMES = 6
_LEAST_FRACTION = 0.01
# Of a module: a tree of many small ones would hide the large ones.
_LEAST_MODULE_FRACTION = 0.02
_MIN_BAR_CHARACTERS = 6
_MAX_BAR_CHARACTERS = 44
_GAP = 2
_NUMBER_CHARACTERS = 8
_MAX_NAME_CHARACTERS = 40
# The longest name of a cause.
_CAUSE_CHARACTERS = 24
# Narrower, and what is said beside the figures would cut them.
_LEAST_TEXTS_CHARACTERS = 60


def cause_bars(report: ExplainReport, console: Console, width: int) -> Group:
    """Return a bar for each cause, the longest first, and one for all that are too short.

    Args:
        report: The explanation.
        console: Its encoding tells how fine a bar can be.
        width: Characters for it.
    """
    shown = _longest(cause_shares(report.attribution))
    longest = max((share.fraction for share in shown), default=1.0)
    names = max((len(share.name) for share in shown), default=0)
    room = width - names - 2 * _NUMBER_CHARACTERS - 3 * _GAP
    num_characters = min(room, _MAX_BAR_CHARACTERS)
    table = _table()
    table.add_column(no_wrap=True, overflow="ellipsis")
    if num_characters >= _MIN_BAR_CHARACTERS:
        table.add_column(width=num_characters, no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="dim")
    for share in shown:
        bar = _bar(share.fraction / longest, num_characters, console)
        bars = [Text(bar, style="dim" if share.group is None else share.group.value.style)]
        table.add_row(
            Text(share.name),
            *(bars if num_characters >= _MIN_BAR_CHARACTERS else ()),
            Text(format_percent(share.fraction)),
            Text(format_duration(share.time_ns, 2)),
        )
    title = f"Where the {format_duration(report.attribution.step_ns)} on {report.device} go"
    return Group(_title(title), table)


def _longest(shares: tuple[CauseShare, ...]) -> list[CauseShare]:
    """Return the longest causes, and all others as one."""
    num_shown = min(sum(share.fraction >= _LEAST_FRACTION for share in shares), _MAX_CAUSES)
    rest = shares[num_shown:]
    if len(rest) < 2:
        return list(shares)
    others = CauseShare(
        name=f"{len(rest)} more causes",
        group=None,
        time_ns=sum(share.time_ns for share in rest),
        fraction=sum(share.fraction for share in rest),
    )
    return [*shares[:num_shown], others]


def phase_line(report: ExplainReport) -> Text:
    """Return the step by phase, in one line."""
    phases = " · ".join(
        f"{phase} {format_percent(fraction)}"
        for phase, fraction in phase_shares(report.attribution)
    )
    return Text(f"phases: {phases}", style="dim")


def line_bars(report: ExplainReport, console: Console, width: int) -> Group:
    """Return the lines that take the most time, with their text where there is room.

    Below a line that leaves the step to a framework come the parts of that, with their causes.

    Args:
        report: The explanation.
        console: Its encoding tells how fine a bar can be.
        width: Characters for it.
    """
    shares = line_shares(report.attribution, report.recording)
    shown = [share for share in shares if share.fraction >= _LEAST_FRACTION][:_MAX_LINES]
    has_texts = width >= _LEAST_TEXTS_CHARACTERS
    names = short_names(share.file for share in shares)
    room = width - _NUMBER_CHARACTERS - _GAP
    room_of_name = min(_MAX_NAME_CHARACTERS, room // 2 if has_texts else room)
    room_of_frames = max(room_of_name, min(_MAX_NAME_CHARACTERS, room - _CAUSE_CHARACTERS))
    rows: list[tuple[str, str, str]] = []
    for share in shown:
        name = names[share.file] if share.file is not None else None
        place = _place(name, share.line, room_of_name)
        rows.append((format_percent(share.fraction), place, share.source or share.cause))
        rows += _frame_rows(share, console, room_of_frames)
    room_of_text = room - max((cell_len(place) for _, place, _ in rows), default=0) - _GAP
    table = _table()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    if has_texts:
        table.add_column(no_wrap=True, overflow="ellipsis", style="dim", max_width=room_of_text)
    for figure, place, text in rows:
        table.add_row(Text(figure), Text(place), *([Text(text)] if has_texts else []))
    return Group(_title("The lines that take the most of it"), table)


def _frame_rows(share: LineShare, console: Console, room: int) -> Iterator[tuple[str, str, str]]:
    """Yield what a framework does below a line: no figure beside the lines', then its own."""
    arrow = "->" if console.options.ascii_only else "→"
    shown = [frame for frame in share.frames if frame.fraction >= _LEAST_FRACTION]
    if len(shown) < 2:
        return
    for frame in shown[:_MAX_FRAMES]:
        figure = f"{format_percent(frame.fraction):>{_NUMBER_CHARACTERS - 2}} {arrow} "
        name = _fitting(frame.name, room - len(figure))
        yield "", figure + name.replace("→", arrow), frame.cause


def _fitting(name: str, room: int) -> str:
    """Return as many of the inner functions as there is room for."""
    while len(name) > room and "→" in name:
        name = name.partition(" → ")[2]
    return shorten(name, room)


def _place(file: str | None, line: int | None, room: int) -> str:
    """Return ``file:line``; the line number survives, whatever the length of the path."""
    if file is None:
        return "no line of yours"
    end = "" if line is None else f":{line}"
    return shorten(printable(file, None), max(room - len(end), 8)) + end


def module_bars(report: ExplainReport, console: Console) -> Group | None:
    """Return the modules as a tree, each with its bar below its parent's; None without modules."""
    shares = module_shares(report.attribution, least_fraction=_LEAST_MODULE_FRACTION)
    if not shares:
        return None
    shown = shares[:_MAX_MODULES]
    labels = [shorten("  " * share.depth + share.name, _MAX_NAME_CHARACTERS) for share in shown]
    names = max(map(len, labels))
    has_phases = console.width >= _LEAST_TEXTS_CHARACTERS
    num_figures = 3 if has_phases else 1
    room = console.width - names - num_figures * (_NUMBER_CHARACTERS + _GAP)
    num_characters = min(room, _MAX_BAR_CHARACTERS)
    has_bars = num_characters >= _MIN_BAR_CHARACTERS
    table = _table(shows_header=True)
    table.add_column("module", no_wrap=True, overflow="ellipsis")
    if has_bars:
        table.add_column("", width=num_characters, no_wrap=True)
    for heading in ("step", "forward", "backward")[:num_figures]:
        table.add_column(heading, justify="right", no_wrap=True)
    for label, share in zip(labels, shown, strict=True):
        bars = [Text(_flame_bar(share, num_characters, console), style="green")]
        table.add_row(
            Text(label),
            *(bars if has_bars else ()),
            Text(format_percent(share.fraction)),
            *(
                Text(format_percent(fraction) if fraction > 0 else "", style="dim")
                for fraction in (share.forward_fraction, share.backward_fraction)
                if has_phases
            ),
        )
    rows: list[Text | Table] = [_title("The step by module"), table]
    if len(shares) > len(shown):
        rows.append(Text(f"and {len(shares) - len(shown)} more in --json", style="dim"))
    return Group(*rows)


def _flame_bar(share: ModuleShare, num_characters: int, console: Console) -> str:
    begin = min(round(share.start_fraction * num_characters), num_characters - 1)
    length = max(1, round((share.start_fraction + share.fraction) * num_characters) - begin)
    mark = "#" if console.options.ascii_only else "█"
    return " " * begin + mark * min(length, num_characters - begin)


def _bar(fraction: float, num_characters: int, console: Console) -> str:
    """Return a bar of a length that is right to an eighth of a character."""
    if num_characters < 1:
        return ""
    if console.options.ascii_only:
        return "#" * max(round(fraction * num_characters), 1)
    eighths = max(round(fraction * num_characters * len(_EIGHTHS)), 1)
    full, part = divmod(eighths, len(_EIGHTHS))
    return "█" * full + (_EIGHTHS[part] if part else "")


def _title(text: str) -> Text:
    return Text(text, style="bold", overflow="fold")


def _table(*, shows_header: bool = False) -> Table:
    return Table(
        box=None,
        padding=(0, _GAP, 0, 0),
        pad_edge=False,
        show_header=shows_header,
        header_style="dim",
    )

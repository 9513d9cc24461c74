"""A document at a terminal, as wide as that is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import assert_never

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from breakeven.report.backends.terminal_table import GAP, FittedColumn, fit_table
from breakeven.report.charts.model import Chart
from breakeven.report.charts.terminal import chart_text, strip_lines
from breakeven.report.document import (
    Beside,
    Block,
    Code,
    Document,
    Drawing,
    Image,
    Lines,
    Markdown,
    Notes,
    Section,
    Timeline,
)
from breakeven.report.phrase import Line, Medium, Phrase
from breakeven.report.table import Bar, Cell, Interval, Table, terminal_phrase
from breakeven.report.text import plural, printable

_ASCII = str.maketrans(
    {"●": "*", "○": "o", "◆": "#", "▪": "=", "─": "-", "┊": ":", "█": "#", "→": "->"}
)
_EIGHTHS = " ▏▎▍▌▋▊▉"
_CHART_ROWS = (10, 16)
_CHART_COLUMNS = 100
_MAX_CURVES = 10
_MANY_CURVES = 5
# From this width on, two sections fit side by side.
_BESIDE_CHARACTERS = 130
_BESIDE_GAP = 4
_MIN_PLACE_CHARACTERS = 12
_MAX_CODE_LINES = 80
_CODE_STYLES = {"+": "green", "-": "red", "@": "cyan"}
# Longer lines of text are hard to read, however wide the terminal is.
_MAX_TEXT_CHARACTERS = 100


def render(document: Document, console: Console, *, hints: Sequence[str] = ()) -> None:
    """Write a document to ``console``.

    Args:
        document: What to show.
        console: Where to; its size, colours and encoding are honoured.
        hints: Lines at the end that say what to do next.
    """
    page = _Renderer(console)
    parts: list[list[RenderableType]] = [
        list(page.blocks(document.before, console.width)),
        [
            *page.lines(document.answers, console.width),
            *(page.text(warning, "yellow") for warning in document.warnings),
        ],
        [
            page.text(fact.text if fact.is_bare else f"{fact.name}: {fact.text}", "dim")
            for fact in document.facts
            if fact.only is not Medium.PAGE
        ],
    ]
    shown = [part for part in parts if part]
    for number, part in enumerate(shown):
        if number:
            console.line()
        for renderable in part:
            console.print(renderable)
    for renderable in page.blocks(document.blocks, console.width):
        # What is left in one piece is neither wrapped nor cropped.
        is_whole = isinstance(renderable, Text) and renderable.overflow == "ignore"
        console.print(renderable, soft_wrap=is_whole)
    if hints:
        console.line()
    for hint in hints:
        console.print(page.text(printable(hint), "dim"))


def interval_plot(
    interval: Interval, *, axis: tuple[float, float, float | None], num_characters: int
) -> str:
    """Return ``──○───``: a value and its interval on a logarithmic axis.

    Args:
        interval: Low, value and high, above 0.
        axis: Ends of the axis, and another value to mark, under the interval.
        num_characters: Length of the axis.
    """
    start, end, reference = axis

    def position(value: float) -> int:
        share = math.log(value / start) / math.log(end / start)
        return min(max(round(share * (num_characters - 1)), 0), num_characters - 1)

    low, high = position(interval.low), position(interval.high)
    characters = [" "] * num_characters
    if reference is not None:
        characters[position(reference)] = "┊"
    characters[low : high + 1] = "─" * (high + 1 - low)
    characters[position(interval.value)] = interval.mark
    return "".join(characters)


class _Renderer:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_ascii = console.options.ascii_only

    def text(self, phrase: Phrase, style: str = "") -> Text:
        parts = (phrase,) if isinstance(phrase, str) else phrase
        text = Text(style=style, overflow="fold")  # a long path is cut at the end, not dropped
        for part in parts:
            words, own = (part, "") if isinstance(part, str) else part
            text.append(self._shown(words), own)
        return text

    def blocks(self, blocks: Sequence[Block], width: int) -> Iterator[RenderableType]:
        for block in blocks:
            if block.only is not Medium.PAGE:
                yield from self._block(block, width)

    def _block(self, block: Block, width: int) -> Iterator[RenderableType]:
        match block:
            case Section():
                yield Text()
                yield from self._section(block, width)
            case Lines(lines):
                yield from self.lines(lines, width)
            case Table():
                yield from self._table(block, width)
            case Notes():
                yield from self._notes(block)
            case Code(lines):
                yield from self._code(lines)
            case Markdown(text):
                yield self._markdown(text)
            case Drawing(chart):
                yield from self._chart(chart)
            case Timeline(spans):
                yield from strip_lines(spans, self._console)
            case Beside(left, right):
                yield from self._beside(left, right, width)
            case Image():
                return
            case _:
                assert_never(block)

    def lines(self, lines: Sequence[Line], width: int) -> Iterator[RenderableType]:
        for line in lines:
            if line.only is not Medium.PAGE:
                yield from self._line(line, width)

    def _shown(self, text: str) -> str:
        return text.translate(_ASCII) if self._is_ascii else text

    def _section(self, section: Section, width: int) -> Iterator[RenderableType]:
        heading = section.title if section.heading is None else section.heading
        if heading:
            yield self.text(heading, section.style)
        yield from self.blocks(section.blocks, width)

    def _line(self, line: Line, width: int) -> Iterator[RenderableType]:
        text, place = self.text(line.phrase, line.style), line.place
        if line.is_whole:
            text.overflow = "ignore"
        if place is None:
            yield _indented(text, line.indent)
            return
        if line.beneath is None:
            start = place.text(width - line.indent - 2)
            before = self.text(f"{start} · " if text else start, line.style)
            yield _indented(before.append_text(text), line.indent)
            return
        room = width - line.indent - text.cell_len - 2
        if room >= min(len(place.text()), _MIN_PLACE_CHARACTERS + len(place.end)):
            text.append("  " + place.text(room))
            yield _indented(text, line.indent)
        else:
            yield _indented(text, line.indent)
            yield _indented(self.text(place.text(width - line.beneath)), line.beneath)

    def _notes(self, notes: Notes) -> Iterator[RenderableType]:
        for note in notes.notes[: notes.most]:
            remark = f" ({note.remark})" if note.remark else ""
            phrase = (
                f"{note.count}× " if note.count else "",
                (note.label, "yellow"),
                f"  {note.text}",
                (remark, "dim"),
            )
            yield _indented(self.text(phrase), 2)
        num_hidden = len(notes.notes) - notes.most
        if num_hidden > 0:
            rest = notes.rest or f"and {num_hidden:,} more, listed by --json"
            yield _indented(self.text(rest, "dim"), 2)

    def _code(self, lines: Sequence[str]) -> Iterator[RenderableType]:
        for line in lines[:_MAX_CODE_LINES]:
            text = printable(line.expandtabs(), 500)
            yield _indented(self.text(text, _CODE_STYLES.get(line[:1], "")), 2)
        num_hidden = len(lines) - _MAX_CODE_LINES
        if num_hidden > 0:
            more = f"and {plural(num_hidden, 'more line')}"
            yield _indented(self.text(more, "dim"), 2)

    def _markdown(self, text: str) -> RenderableType:
        # Slow to import, and needed here only.
        from breakeven.report.backends.terminal_markdown import PageMarkdown

        width = min(self._console.width, _MAX_TEXT_CHARACTERS)
        grid = RichTable.grid()
        grid.add_column(width=width)
        grid.add_row(Padding(PageMarkdown(text), (0, 0, 0, 2)))
        return grid

    def _chart(self, chart: Chart) -> Iterator[RenderableType]:
        least_rows, most_rows = _CHART_ROWS
        # Many curves close to each other need the height.
        is_crowded = len(chart.series) >= _MANY_CURVES
        wanted_rows = most_rows if is_crowded else self._console.height // 2
        text = chart_text(
            dataclasses.replace(chart, series=chart.series[:_MAX_CURVES]),
            num_columns=min(self._console.width - 2, _CHART_COLUMNS),
            num_rows=min(max(wanted_rows, least_rows), most_rows),
            is_ascii=self._is_ascii,
        )
        text.no_wrap = True
        text.overflow = "crop"
        yield Text()
        yield _indented(text, 2)
        num_hidden = len(chart.series) - _MAX_CURVES
        if num_hidden > 0:
            more = f"and {num_hidden} more curves: --chart FILE.html"
            yield _indented(self.text(more, "dim"), 2)

    def _beside(self, left: Section, right: Section, width: int) -> Iterator[RenderableType]:
        if width < _BESIDE_CHARACTERS:
            yield from self.blocks((left, right), width)
            return
        half = (width - _BESIDE_GAP) // 2
        grid = RichTable.grid(padding=(0, _BESIDE_GAP, 0, 0))
        grid.add_column(width=half)
        grid.add_column(width=half)
        grid.add_row(*(Group(*self._section(section, half)) for section in (left, right)))
        yield Text()
        yield grid

    def _table(self, table: Table, width: int) -> Iterator[RenderableType]:
        fitted = fit_table(table, width - table.indent, self._console.height, self._shown)
        for number, columns in enumerate(fitted.parts):
            if number:
                yield Text()
            yield _indented(self._drawn(table, columns, fitted.rows), table.indent)
        phrases = [table.legend]
        if table.left_out is not None:
            phrases.append(table.left_out(len(fitted.rows), table.num_rows, fitted.hidden))
        for phrase in phrases:
            if phrase:
                yield _indented(self.text(phrase, "dim"), table.indent)

    def _drawn(
        self, table: Table, columns: Sequence[FittedColumn], rows: Sequence[int]
    ) -> RichTable:
        drawn = RichTable(
            box=None,
            padding=(0, GAP, 0, 0),
            pad_edge=False,
            header_style="dim",
            show_header=table.has_header,
        )
        for fitted in columns:
            column = fitted.column
            side = "right" if column.is_number else "left"
            drawn.add_column(
                Text(self._shown(fitted.header), justify=side),
                justify=side,
                no_wrap=not column.folds,
                overflow="fold" if column.folds else "ellipsis",
                style=column.style,
                vertical="top",
                max_width=max(fitted.width, 1) if column.folds else None,
            )
        for position, row in enumerate(rows):
            style = table.row_styles[row] if table.row_styles else ""
            drawn.add_row(*(self._cell(one, position) for one in columns), style=style)
        return drawn

    def _cell(self, fitted: FittedColumn, position: int) -> Text:
        cell, column, width = fitted.cells[position], fitted.column, fitted.width
        match cell:
            case Interval():
                plot = interval_plot(cell, axis=column.axis, num_characters=width)
                return self.text(plot, cell.style)
            case Bar():
                return self.text(self._bar(cell, width), cell.style)
            case _:
                style = cell.style if isinstance(cell, Cell) else ""
                text = self.text(terminal_phrase(cell, is_brief=fitted.is_brief), style)
        if column.folds or column.cuts_end or text.cell_len <= width:
            if column.cuts_end:
                text.truncate(width, overflow="ellipsis")
            return text
        fit = cell.fit if isinstance(cell, Cell) else None
        if fit is None:
            return self._shortened(text, width)
        found = self._shown(fit(width))
        return Text(self._shown(fit(2 * width - len(found))) if len(found) > width else found)

    def _shortened(self, text: Text, width: int) -> Text:
        """Return text without its middle, the style of its beginning kept."""
        num_last = width // 2
        head = text[: max(width - 1 - num_last, 0)]
        return head + Text("…", style=text.style) + text[len(text) - num_last :]

    def _bar(self, bar: Bar, num_characters: int) -> str:
        """Return a bar, right to an eighth of a character where it begins at one."""
        begin = min(round(bar.start * num_characters), num_characters - 1)
        if bar.start or self._is_ascii:
            end = round((bar.start + bar.length) * num_characters)
            return " " * begin + "█" * min(max(end - begin, 1), num_characters - begin)
        eighths = max(round(bar.length * num_characters * len(_EIGHTHS)), 1)
        full, part = divmod(eighths, len(_EIGHTHS))
        return "█" * full + (_EIGHTHS[part] if part else "")


def _indented(renderable: Text | RichTable, num_characters: int) -> RenderableType:
    if not num_characters:
        return renderable
    return Padding(renderable, (0, 0, 0, num_characters), expand=False)

"""A document at a terminal, as wide as that is."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import assert_never

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from breakeven.report.charts.causes import timeline_end_ns
from breakeven.report.charts.model import Chart
from breakeven.report.charts.terminal import chart_text, strip_text
from breakeven.report.document import (
    Block,
    Code,
    Document,
    Drawing,
    Image,
    Lines,
    Markdown,
    Section,
    Timeline,
)
from breakeven.report.phrase import Fact, Line, Medium, Phrase, plain
from breakeven.report.table import AnyCell, Bar, Cell, Column, Interval, Table
from breakeven.report.text import plural, printable

_ASCII = str.maketrans(
    {"●": "*", "○": "o", "◆": "#", "▪": "=", "─": "-", "┊": ":", "█": "#", "→": "->"}
)
_EIGHTHS = " ▏▎▍▌▋▊▉"
_CHART_ROWS = (10, 16)
_CHART_COLUMNS = 100
_MAX_CURVES = 10
_MANY_CURVES = 5
_MAX_CODE_LINES = 80
_CODE_STYLES = {"+": "green", "-": "red", "@": "cyan"}
# Longer lines of text are hard to read, however wide the terminal is.
_MAX_TEXT_CHARACTERS = 100
_BAR_CHARACTERS = (6, 44)
_INTERVAL_CHARACTERS = (13, 28)
_HEADER_CHARACTERS = 16
_ROW_STYLES = {"chosen": "bold", "out": "dim"}
# More than any terminal has.
_UNLIMITED = 100_000


def render(document: Document, console: Console, *, hints: Sequence[str] = ()) -> None:
    """Write a document to ``console``.

    Args:
        document: What to show.
        console: Where to; its size, colours and encoding are honoured.
        hints: Lines at the end that say what to do next.
    """
    page = _Renderer(console)
    warnings = (Line(warning, "yellow") for warning in document.warnings)
    facts = (_fact_line(fact) for fact in document.facts)
    parts = [
        list(page.blocks(part))
        for part in (
            document.before,
            (Lines((*document.answers, *warnings)),),
            (Lines(tuple(facts)),),
        )
    ]
    for number, part in enumerate(filter(None, parts)):
        if number:
            console.line()
        for renderable in part:
            console.print(renderable)
    for renderable in page.blocks(document.blocks):
        # What is left in one piece is neither wrapped nor cropped.
        is_whole = isinstance(renderable, Text) and renderable.overflow == "ignore"
        console.print(renderable, soft_wrap=is_whole)
    if hints:
        console.line()
    for hint in hints:
        console.print(page.text(printable(hint), "dim"))


def _fact_line(fact: Fact) -> Line:
    text = fact.text if fact.is_bare else f"{fact.name}: {fact.text}"
    return Line(text, "dim", only=fact.only)


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


def bar_plot(bar: Bar, num_characters: int, *, is_ascii: bool) -> str:
    """Return a bar, right to an eighth of a character if it begins at 0."""
    begin = min(round(bar.start * num_characters), num_characters - 1)
    if bar.start or is_ascii:
        end = round((bar.start + bar.length) * num_characters)
        return " " * begin + "█" * min(max(end - begin, 1), num_characters - begin)
    full, part = divmod(max(round(bar.length * num_characters * 8), 1), 8)
    return "█" * full + (_EIGHTHS[part] if part else "")


@dataclasses.dataclass(frozen=True, slots=True)
class _Drawn:
    """A bar or interval, as wide as its column has room."""

    cell: Bar | Interval
    axis: tuple[float, float, float | None]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        ends = _BAR_CHARACTERS if isinstance(self.cell, Bar) else _INTERVAL_CHARACTERS
        return Measurement(*ends).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        is_ascii, width = console.options.ascii_only, options.max_width
        if isinstance(self.cell, Bar):
            plot = bar_plot(self.cell, width, is_ascii=is_ascii)
        else:
            plot = interval_plot(self.cell, axis=self.axis, num_characters=width)
        yield Text(plot.translate(_ASCII) if is_ascii else plot, style=self.cell.style)


class _Renderer:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_ascii = console.options.ascii_only

    def text(self, phrase: Phrase, style: str = "") -> Text:
        text = Text(style=style, overflow="fold")  # a long path is cut at the end, not dropped
        for part in (phrase,) if isinstance(phrase, str) else phrase:
            words, own = (part, "") if isinstance(part, str) else part
            text.append(words.translate(_ASCII) if self._is_ascii else words, own)
        return text

    def blocks(self, blocks: Sequence[Block]) -> Iterator[RenderableType]:
        for block in blocks:
            if block.only is not Medium.PAGE:
                yield from self._block(block)

    def _block(self, block: Block) -> Iterator[RenderableType]:
        match block:
            case Section():
                yield Text()
                heading = block.title if block.heading is None else block.heading
                if heading:
                    yield self.text(heading, block.style)
                yield from self.blocks(block.blocks)
            case Lines(lines):
                for line in lines:
                    if line.only is not Medium.PAGE:
                        text = self.text(line.phrase, line.style)
                        text.overflow = "ignore" if line.is_whole else text.overflow
                        yield _indented(text, line.indent)
            case Table():
                yield from self._table(block)
            case Code(lines):
                for line in lines[:_MAX_CODE_LINES]:
                    text = printable(line.expandtabs(), 500)
                    yield _indented(self.text(text, _CODE_STYLES.get(line[:1], "")), 2)
                num_hidden = len(lines) - _MAX_CODE_LINES
                if num_hidden > 0:
                    yield _indented(self.text(f"and {plural(num_hidden, 'more line')}", "dim"), 2)
            case Markdown(text):
                # Slow to import, and needed here only.
                from rich.markdown import Markdown as RichMarkdown

                grid = RichTable.grid()
                grid.add_column(width=min(self._console.width, _MAX_TEXT_CHARACTERS))
                page = RichMarkdown(text, code_theme="ansi_dark", hyperlinks=False)
                grid.add_row(Padding(page, (0, 0, 0, 2)))
                yield grid
            case Drawing(chart):
                yield from self._chart(chart)
            case Timeline(spans):
                if timeline_end_ns(spans) > 0:
                    yield from strip_text(spans, self._console.width, is_ascii=self._is_ascii)
            case Image():
                return
            case _:
                assert_never(block)

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

    def _table(self, table: Table) -> Iterator[RenderableType]:
        """Yield a table, without what is optional and has no room, in as many parts as it needs."""
        width = self._console.width
        every = [column for column in table.columns if column.only is not Medium.PAGE]
        columns = [column for column in every if not column.optional]
        for level in sorted({column.optional for column in every} - {0}):
            for one in every:
                wider = [each for each in every if each is one or each in columns]
                if one.optional == level and self._least(table, wider) <= width:
                    columns = wider
        parts = [columns[:1]]
        for column in columns[1:]:
            if len(parts[-1]) > 1 and self._least(table, [*parts[-1], column]) > width:
                parts.append(columns[:1])
            parts[-1].append(column)
        for number, part in enumerate(parts):
            if number:
                yield Text()
            yield self._drawn(table, part)
        num_hidden = table.num_rows - table.most
        more = f"and {num_hidden:,} more in --json" if num_hidden > 0 else ""
        for phrase in (table.legend, more):
            if phrase:
                yield self.text(phrase, "dim")

    def _least(self, table: Table, columns: Sequence[Column]) -> int:
        options = self._console.options.update(width=_UNLIMITED)
        return Measurement.get(self._console, options, self._drawn(table, columns)).minimum

    def _drawn(self, table: Table, columns: Sequence[Column]) -> RichTable:
        drawn = RichTable(
            box=None,
            padding=(0, 2, 0, 0),
            pad_edge=False,
            header_style="dim",
            show_header=table.has_header,
        )
        for column in columns:
            cells = column.cells[: table.most]
            widest = max((cell_len(_plain(cell)) for cell in cells), default=0)
            header = column.header if table.has_header else ""
            if column.is_number:
                header = textwrap.fill(header, max(widest, _HEADER_CHARACTERS))
            widest = max(widest, *map(cell_len, header.split("\n")))
            least = column.least if column.folds else widest
            side = "right" if column.is_number else "left"
            is_drawn = any(isinstance(cell, Bar | Interval) for cell in cells)
            drawn.add_column(
                self.text(header),
                justify=side,
                no_wrap=not (column.folds or is_drawn),
                overflow="fold",
                style=column.style,
                vertical="top",
                min_width=None if is_drawn else min(least, widest),
            )
        for row in range(min(table.num_rows, table.most)):
            mark = table.marks[row] if table.marks else ""
            cells = (self._cell(column.cells[row], column) for column in columns)
            drawn.add_row(*cells, style=_ROW_STYLES.get(mark, ""))
        return drawn

    def _cell(self, cell: AnyCell, column: Column) -> RenderableType:
        if isinstance(cell, Bar | Interval):
            return _Drawn(cell, column.axis)
        return self.text(cell.phrase, cell.style) if isinstance(cell, Cell) else self.text(cell)


def _plain(cell: AnyCell) -> str:
    if isinstance(cell, Cell):
        return plain(cell.phrase)
    return cell if isinstance(cell, str) else ""


def _indented(renderable: Text, num_characters: int) -> RenderableType:
    if not num_characters:
        return renderable
    return Padding(renderable, (0, 0, 0, num_characters), expand=False)

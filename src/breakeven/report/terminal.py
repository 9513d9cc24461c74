"""Renders a document in a terminal, at the terminal's width."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from typing import assert_never

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from breakeven.report.chart import Chart
from breakeven.report.chart_text import chart_text, strip_text
from breakeven.report.document import (
    AnyCell,
    Bar,
    Block,
    Cell,
    Code,
    Column,
    Document,
    Line,
    Markdown,
    Medium,
    Phrase,
    Section,
    Table,
    Timeline,
    cell_text,
    fact_lines,
)
from breakeven.report.text import ASCII, printable

_EIGHTHS = " ▏▎▍▌▋▊▉"
_CHART_ROWS = (12, 16)
_CHART_COLUMNS = 100
_MAX_CURVES = 10
_MANY_CURVES = 5
_CODE_STYLES = {"+": "green", "-": "red", "@": "cyan"}
# Longer text lines are hard to read, even in a wide terminal.
_MAX_TEXT_CHARACTERS = 100
_BAR_CHARACTERS = (6, 44)
_HEADER_CHARACTERS = 16
_ROW_STYLES = {"chosen": "bold", "out": "dim"}
# More columns than any terminal has.
_UNLIMITED = 100_000


def render(document: Document, console: Console, *, hints: Sequence[str] = ()) -> None:
    """Write a document to ``console``.

    Args:
        document: The document to show.
        console: The console; its size, colours and encoding are respected.
        hints: Closing lines with next actions.
    """
    if not console.options.ascii_only:
        _render(document, console, hints)
        return
    with console.capture() as capture:
        _render(document, console, hints)
    console.file.write(capture.get().translate(ASCII))


def _render(document: Document, console: Console, hints: Sequence[str]) -> None:
    warnings = (Line(warning, "yellow") for warning in document.warnings)
    head = (document.before, (*document.answers, *warnings), tuple(fact_lines(document.facts)))
    for number, blocks in enumerate(filter(None, head)):
        if number:
            console.line()
        for renderable in _blocks(blocks, console):
            console.print(renderable)
    for renderable in _blocks(document.blocks, console):
        # Neither wrap nor crop a whole line.
        is_whole = isinstance(renderable, Text) and renderable.overflow == "ignore"
        console.print(renderable, soft_wrap=is_whole)
    if hints:
        console.line()
    for hint in hints:
        console.print(_text(printable(hint), console, "dim"))


def _text(phrase: Phrase, console: Console, style: str = "", indent: int = 0) -> RenderableType:
    text = Text(style=style, overflow="fold")  # fold a long path at the end; do not drop it
    for part in (phrase,) if isinstance(phrase, str) else phrase:
        words, own = (part, "") if isinstance(part, str) else part
        text.append(words.translate(ASCII) if console.options.ascii_only else words, own)
    return Padding(text, (0, 0, 0, indent), expand=False) if indent else text


def _blocks(blocks: Sequence[Block], console: Console) -> Iterator[RenderableType]:
    for block in blocks:
        match block:
            case Line(only=Medium.PAGE) | Table(only=Medium.PAGE) | Section(only=Medium.PAGE):
                pass
            case Section():
                yield Text()
                heading = block.title if block.heading is None else block.heading
                if heading:
                    yield _text(heading, console, block.style)
                yield from _blocks(block.blocks, console)
            case Line():
                text = _text(block.phrase, console, block.style, block.indent)
                if block.is_whole and isinstance(text, Text):
                    text.overflow = "ignore"
                yield text
            case Table():
                yield from _table(block, console)
            case Code(lines):
                for line in lines:
                    text = printable(line.expandtabs(), 500)
                    yield _text(text, console, _CODE_STYLES.get(line[:1], ""), 2)
            case Markdown(text):
                # Slow to import, and needed only here.
                from rich.markdown import Markdown as RichMarkdown

                grid = RichTable.grid()
                grid.add_column(width=min(console.width, _MAX_TEXT_CHARACTERS))
                page = RichMarkdown(text, code_theme="ansi_dark", hyperlinks=False)
                grid.add_row(Padding(page, (0, 0, 0, 2)))
                yield grid
            case Chart():
                yield from _chart(block, console)
            case Timeline(spans):
                yield from strip_text(spans, console.width)
            case _:
                assert_never(block)


def _chart(chart: Chart, console: Console) -> Iterator[RenderableType]:
    # Many close curves need the height.
    is_crowded = len(chart.series) >= _MANY_CURVES
    text = chart_text(
        dataclasses.replace(chart, series=chart.series[:_MAX_CURVES]),
        num_columns=min(console.width - 2, _CHART_COLUMNS),
        num_rows=_CHART_ROWS[is_crowded],
    )
    text.no_wrap, text.overflow = True, "crop"
    yield Text()
    yield Padding(text, (0, 0, 0, 2), expand=False)
    num_hidden = len(chart.series) - _MAX_CURVES
    if num_hidden > 0:
        yield _text(f"and {num_hidden} more curves: --chart FILE.html", console, "dim", 2)


def _table(table: Table, console: Console) -> Iterator[RenderableType]:
    """Yield a table without optional columns that do not fit, in as many parts as necessary."""

    def fits(columns: Sequence[Column]) -> bool:
        options = console.options.update(width=_UNLIMITED)
        drawn = _drawn_table(table, columns, console)
        return Measurement.get(console, options, drawn).minimum <= console.width

    every = [column for column in table.columns if column.only is not Medium.PAGE]
    columns = [column for column in every if not column.optional]
    for one in sorted(every, key=lambda column: column.optional):
        wider = [each for each in every if each is one or each in columns]
        if one.optional and fits(wider):
            columns = wider
    parts = [columns[:1]]
    for column in columns[1:]:
        if len(parts[-1]) > 1 and not fits([*parts[-1], column]):
            parts.append(columns[:1])
        parts[-1].append(column)
    for number, part in enumerate(parts):
        if number:
            yield Text()
        yield _drawn_table(table, part, console)
    num_hidden = len(columns[0].cells) - table.most
    more = f"and {num_hidden:,} more in --json" if num_hidden > 0 else ""
    for phrase in filter(None, (table.legend, more)):
        yield _text(phrase, console, "dim")


def _drawn_table(table: Table, columns: Sequence[Column], console: Console) -> RichTable:
    drawn = RichTable(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        header_style="dim",
        show_header=table.has_header,
    )
    for column in columns:
        cells = column.cells[: table.most]
        widest = max((cell_len(cell_text(cell)) for cell in cells), default=0)
        header = column.header if table.has_header else ""
        if column.is_number:
            header = textwrap.fill(header, max(widest, _HEADER_CHARACTERS))
        widest = max(widest, *map(cell_len, header.split("\n")))
        is_drawn = any(isinstance(cell, Bar) for cell in cells)
        drawn.add_column(
            _text(header, console),
            justify="right" if column.is_number else "left",
            no_wrap=not (column.least or is_drawn),
            overflow="fold",
            style=column.style,
            vertical="top",
            min_width=None if is_drawn else min(column.least or widest, widest),
        )
    for row in range(min(len(columns[0].cells), table.most)):
        mark = table.marks[row] if table.marks else ""
        cells = (_cell(column.cells[row], console) for column in columns)
        drawn.add_row(*cells, style=_ROW_STYLES.get(mark, ""))
    return drawn


def _cell(cell: AnyCell, console: Console) -> RenderableType:
    if isinstance(cell, Bar):
        return _Drawn(cell)
    phrase, style = (cell.phrase, cell.style) if isinstance(cell, Cell) else (cell, "")
    return _text(phrase, console, style)


@dataclasses.dataclass(frozen=True, slots=True)
class _Drawn:
    """A bar, as wide as its column; accurate to an eighth of a character if it starts at 0."""

    cell: Bar

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(*_BAR_CHARACTERS).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bar, width = self.cell, options.max_width
        begin = min(round(bar.start * width), width - 1)
        if bar.start:
            end = round((bar.start + bar.length) * width)
            plot = " " * begin + "█" * min(max(end - begin, 1), width - begin)
        else:
            full, part = divmod(max(round(bar.length * width * 8), 1), 8)
            plot = "█" * full + (_EIGHTHS[part] if part else "")
        yield Text(plot, style=bar.style)

"""A document as Markdown, for pages of documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from breakeven.report.document import Block, Code, Document, Image, Lines, Markdown, Section
from breakeven.report.phrase import Medium, page_lines
from breakeven.report.table import Column, Table, page_text
from breakeven.report.text import printable


def render_markdown(document: Document, *, notice: str) -> str:
    """Return a document as a page.

    Args:
        document: What to show.
        notice: For its first line, which no reader sees.
    """
    lines = [f"<!-- {notice} -->\n", f"# {document.title}\n"]
    lines += [*_blocks(document.before), *_blocks(document.blocks)]
    return "\n".join(lines).rstrip() + "\n"


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    """Yield blocks line by line; drawings have no place in Markdown."""
    for block in blocks:
        if block.only is Medium.TERMINAL:
            continue
        match block:
            case Section():
                if block.title:
                    yield f"{'#' * block.level} {block.title}\n"
                yield from _blocks(block.blocks)
            case Lines(lines, is_list):
                for line in page_lines(lines):
                    yield f"- {line}" if is_list else f"{line}\n"
            case Table():
                yield from _table(block)
            case Code(lines):
                yield from ("```diff", *lines, "```\n")
            case Markdown(text):
                yield f"{text}\n"
            case Image(address, description):
                yield f"![{description}]({address})\n"
            case _:
                continue


def _table(table: Table) -> Iterator[str]:
    columns = table.page_columns
    yield _row([column.header for column in columns])
    yield "".join("| ---: " if column.is_number else "| --- " for column in columns) + "|"
    for number in range(table.num_rows):
        yield _row([_cell(column, number) for column in columns])
    yield ""


def _cell(column: Column, number: int) -> str:
    return page_text(column.cells[number])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(printable(cell).replace("|", "\\|") for cell in cells) + " |"

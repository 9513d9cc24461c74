"""Rules as a table, as pages at a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from breakeven.report.rule_pages import RulePage

RULES_SCHEMA_VERSION = 1

# Longer lines are hard to read, however wide the terminal is.
_MAX_LINE_CHARACTERS = 100
_GAP = 2
# With less room beside it than this, the cause would squeeze the title.
_LEAST_TITLE_CHARACTERS = 36


class RuleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A rule behind findings; texts are Markdown.

    Args:
        code: Stable code: ``SYNC001``.
        cause: Root cause that it detects: ``SYNC_ITEM``.
        title: What it finds, in one sentence without its full stop.
        page: All there is to know of it.
    """

    code: str
    cause: str
    title: str
    page: str


class RulesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All rules, or those of one code or cause.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        rules: By code.
    """

    schema_version: int
    rules: tuple[RuleEntry, ...]


def rules_document(pages: Sequence[RulePage]) -> RulesDocument:
    """Return rules as a document, texts in Markdown."""
    entries = (
        RuleEntry(code=page.code, cause=page.cause, title=page.title, page=page.markdown)
        for page in pages
    )
    return RulesDocument(schema_version=RULES_SCHEMA_VERSION, rules=tuple(entries))


def render_rules(pages: Sequence[RulePage], console: Console) -> None:
    """Write a line for each rule: its code, the cause that it detects, and what it finds."""
    widths = [max(len(getattr(page, name)) for page in pages) for name in ("code", "cause")]
    has_causes = console.width - sum(widths) - 2 * _GAP >= _LEAST_TITLE_CHARACTERS
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("rule", no_wrap=True, style="bold magenta")
    if has_causes:
        table.add_column("cause", no_wrap=True, style="dim")
    table.add_column("what it finds", overflow="fold")
    for page in pages:
        causes = [Text(page.cause)] if has_causes else []
        table.add_row(Text(page.code), *causes, Text(page.plain_title))
    console.print(table)


def render_rule_page(page: RulePage, console: Console) -> None:
    """Write the whole page of a rule."""
    # Slow to import, and needed here only.
    from breakeven.report.rule_markdown import PageMarkdown

    width = min(console.width, _MAX_LINE_CHARACTERS)
    heading = Text.assemble((page.code, "bold magenta"), "  ", (page.plain_title, "bold"))
    console.print(heading, width=width)
    console.print(Text(f"cause {page.cause}", style="dim"))
    for name, text in page.sections:
        console.line()
        console.print(Text(name, style="bold"))
        body = PageMarkdown(text)
        console.print(Padding(body, (0, 0, 0, 2)), width=width)

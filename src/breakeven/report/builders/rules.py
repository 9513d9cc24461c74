"""Rules as a table, as pages, and as stored."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from breakeven.report.document import Column, Document, Line, Markdown, Section, Table
from breakeven.report.rule_pages import RulePage

RULES_SCHEMA_VERSION = 1


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


def stored_rules(pages: Sequence[RulePage]) -> RulesDocument:
    """Return rules as a document, texts in Markdown."""
    entries = (
        RuleEntry(code=page.code, cause=page.cause, title=page.title, page=page.markdown)
        for page in pages
    )
    return RulesDocument(schema_version=RULES_SCHEMA_VERSION, rules=tuple(entries))


def rules_document(pages: Sequence[RulePage]) -> Document:
    """Return a line for each rule: its code, the cause that it detects, and what it finds."""
    table = Table(
        (
            Column("rule", [page.code for page in pages], style="bold magenta"),
            Column("cause", [page.cause for page in pages], style="dim", joins=1),
            Column(
                "what it finds",
                [page.plain_title for page in pages],
                folds=True,
                # With less room, the cause would squeeze the title.
                least=36,
            ),
        ),
        caption="Rules",
        indent=0,
    )
    return Document(title="Rules", blocks=(table,))


def rule_document(page: RulePage) -> Document:
    """Return the whole page of a rule."""
    return Document(
        title=f"{page.code}: {page.plain_title}",
        answers=(
            Line(((page.code, "bold magenta"), "  ", (page.plain_title, "bold"))),
            Line(f"cause {page.cause}", "dim"),
        ),
        blocks=[Section(name, (Markdown(text),)) for name, text in page.sections],
    )

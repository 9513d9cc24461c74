"""Rules as a table, as pages of Markdown that their docstrings hold, and as stored."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import cleandoc
from textwrap import dedent
from typing import TYPE_CHECKING

import msgspec

from breakeven.errors import BreakevenError
from breakeven.report.document import Document, Markdown, Section
from breakeven.report.phrase import Line
from breakeven.report.table import Column, Table
from breakeven.report.text import printable

if TYPE_CHECKING:
    from breakeven.doctor import Rule

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
            Column("cause", [page.cause for page in pages], style="dim", optional=1),
            Column(
                "what it finds",
                [page.plain_title for page in pages],
                folds=True,
                # With less room, the cause would squeeze the title.
                least=36,
            ),
        ),
        caption="Rules",
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


SECTIONS = ("What it does", "Why it costs time", "Evidence", "Fix", "Known limits")
_HEADING = re.compile(rf"^({'|'.join(SECTIONS)}):[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"(^```.*?^```[ \t]*$)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePage:
    """What there is to know about a rule.

    Args:
        code: Stable code: ``SYNC001``.
        cause: Root cause that it detects: ``SYNC_ITEM``.
        title: What it finds, in one sentence of Markdown without its full stop.
        sections: Heading and Markdown of each section, in the order of ``SECTIONS``.
    """

    code: str
    cause: str
    title: str
    sections: tuple[tuple[str, str], ...]

    @property
    def plain_title(self) -> str:
        """Return the title without marks around code."""
        return self.title.replace("`", "")

    @property
    def markdown(self) -> str:
        """Return the page as one Markdown document, ending in a newline."""
        parts = [f"# {self.code}: {self.title}", f"Cause: `{self.cause}`"]
        for heading, text in self.sections:
            parts += [f"## {heading}", text]
        return "\n\n".join(parts) + "\n"


def rule_page(rule: Rule) -> RulePage:
    """Return the page of a rule, from the docstring of its module."""
    page = cleandoc(rule.page)
    head, *rest = _HEADING.split(page)
    summary = " ".join(head.split()).removeprefix(f"{rule.code}:").strip()
    texts = dict(zip(rest[::2], map(_markdown, rest[1::2]), strict=True))
    return RulePage(
        code=rule.code,
        cause=rule.cause,
        title=_markdown(summary).removesuffix("."),
        sections=tuple((name, texts[name]) for name in SECTIONS if name in texts),
    )


def all_rule_pages() -> tuple[RulePage, ...]:
    """Return the page of every rule, by code."""
    # Not with the module: what a report shows must not wait for the rules.
    from breakeven.doctor import all_rules

    return tuple(sorted(map(rule_page, all_rules()), key=lambda page: page.code))


def find_rule_pages(name: str) -> tuple[RulePage, ...]:
    """Return the pages that a code or a cause means; several rules may detect one cause.

    Args:
        name: ``SYNC001`` or ``SYNC_ITEM``, in any case.

    Raises:
        BreakevenError: There is no such rule.
    """
    pages = all_rule_pages()
    wanted = name.strip().upper()
    found = tuple(page for page in pages if wanted in (page.code.upper(), page.cause.upper()))
    if not found:
        raise BreakevenError(f"there is no rule {printable(name, 60)}", hint=_hint(wanted, pages))
    return found


def _hint(wanted: str, pages: Sequence[RulePage]) -> str:
    known = dict.fromkeys(word for page in pages for word in (page.code, page.cause))
    close = difflib.get_close_matches(wanted, known, n=3)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{meant}all rules: breakeven rules"


def _markdown(section: str) -> str:
    """Return a section with Markdown's way of marking code, which within a block is left alone."""
    parts = _FENCE.split(dedent(section).strip())
    return "".join(part if part.startswith("```") else part.replace("``", "`") for part in parts)

"""Rules as a table, as Markdown pages, and as stored."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import msgspec

from breakeven.errors import BreakevenError
from breakeven.report.document import Column, Document, Line, Markdown, Section, Table
from breakeven.report.text import printable

RULES_SCHEMA_VERSION = 1
SECTIONS = ("What it does", "Why it costs time", "Evidence", "Fix", "Known limits")
_HEADING = re.compile(rf"^## ({'|'.join(SECTIONS)})$", re.MULTILINE)


class RuleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A rule behind findings; texts are Markdown.

    Args:
        code: Stable code: ``SYNC001``.
        cause: Root cause of its findings: ``SYNC_ITEM``.
        title: Its findings, in one sentence without a full stop.
        page: The whole page of the rule.
    """

    code: str
    cause: str
    title: str
    page: str

    @property
    def plain_title(self) -> str:
        """The title without backticks."""
        return self.title.replace("`", "")

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """Heading and Markdown of each section, in the order of ``SECTIONS``."""
        _, *rest = _HEADING.split(self.page)
        return tuple(zip(rest[::2], (text.strip() for text in rest[1::2]), strict=True))


class RulesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All rules, or those of one code or cause.

    Args:
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        rules: Rules by code.
    """

    schema_version: int
    rules: tuple[RuleEntry, ...]


def all_rule_pages() -> tuple[RuleEntry, ...]:
    """Return the page of every rule, by code."""
    # Load rules on use: reports must not wait for them.
    from breakeven.advise import all_rules

    entries: list[RuleEntry] = []
    for rule in sorted(all_rules(), key=lambda rule: rule.code):
        heading = rule.page.strip().partition("\n")[0]
        title = heading.removeprefix(f"# {rule.code}: ")
        entries.append(RuleEntry(code=rule.code, cause=rule.cause, title=title, page=rule.page))
    return tuple(entries)


def find_rule_pages(name: str) -> tuple[RuleEntry, ...]:
    """Return the pages for a code or a cause; several rules may detect one cause.

    Args:
        name: ``SYNC001`` or ``SYNC_ITEM``, in any case.

    Raises:
        BreakevenError: There is no such rule.
    """
    pages = all_rule_pages()
    wanted = name.strip().upper()
    found = tuple(page for page in pages if wanted in (page.code.upper(), page.cause.upper()))
    if found:
        return found
    known = dict.fromkeys(word for page in pages for word in (page.code, page.cause))
    close = difflib.get_close_matches(wanted, known, n=3)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    raise BreakevenError(
        f"there is no rule {printable(name, 60)}", hint=f"{meant}all rules: breakeven rules"
    )


def stored_rules(pages: Sequence[RuleEntry]) -> RulesDocument:
    """Return rules as stored."""
    return RulesDocument(schema_version=RULES_SCHEMA_VERSION, rules=tuple(pages))


def rules_document(pages: Sequence[RuleEntry]) -> Document:
    """Return one line for each rule: its code, its cause and its title."""
    titles = [page.plain_title for page in pages]
    columns = (
        Column("rule", [page.code for page in pages], style="bold magenta"),
        Column("cause", [page.cause for page in pages], style="dim", optional=1),
        # Keep enough width here: otherwise the cause would squeeze the title.
        Column("what it finds", titles, least=36),
    )
    return Document(title="Rules", blocks=(Table(columns),))


def rule_document(page: RuleEntry) -> Document:
    """Return the whole page of a rule."""
    return Document(
        title=f"{page.code}: {page.plain_title}",
        answers=(
            Line(((page.code, "bold magenta"), "  ", (page.plain_title, "bold"))),
            Line(f"cause {page.cause}", "dim"),
        ),
        blocks=[Section(name, (Markdown(text),)) for name, text in page.sections],
    )

"""What a report says in one line: a sentence, a fact, a place in a file; and where that is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from breakeven.report.text import printable, shorten


class Medium(Enum):
    """Where a document is read."""

    TERMINAL = "terminal"
    PAGE = "page"


# Text, or parts of it, each plain or with a style of the terminal.
Phrase = str | tuple[str | tuple[str, str], ...]


def plain(phrase: Phrase) -> str:
    """Return a phrase without its styles."""
    if isinstance(phrase, str):
        return phrase
    return "".join(part if isinstance(part, str) else part[0] for part in phrase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a file, whose number survives whatever has to be shortened.

    Args:
        file: Its path.
        line: Its number; None for the whole file.
    """

    file: str
    line: int | None

    def text(self, room: int | None = None) -> str:
        """Return ``file:line`` in one piece, which a terminal makes a link."""
        path, end = printable(self.file, None), "" if self.line is None else f":{self.line}"
        return (path if room is None else shorten(path, max(room - len(end), 8))) + end


def page_lines(lines: Sequence[Line]) -> list[str]:
    """Return lines as a page shows them."""
    return [plain(line.phrase) for line in lines if line.only is not Medium.TERMINAL]


def place_of(file: str | None, line: int | None) -> Place | None:
    """Return a place, where there is one."""
    return None if file is None else Place(file=file, line=line)


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence or fact of its own.

    Args:
        phrase: What it says.
        style: At a terminal.
        indent: Characters before it there.
        only: The one medium that has it.
        is_whole: Whether it is left in one piece, such as an address, however long it is.
    """

    phrase: Phrase
    style: str = ""
    indent: int = 0
    only: Medium | None = None
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Fact:
    """What was run, or where.

    Args:
        name: Of the fact.
        text: What it is.
        is_bare: Whether the text alone says what it is, at a terminal.
        only: The one medium that has it.
    """

    name: str
    text: str
    is_bare: bool = False
    only: Medium | None = None

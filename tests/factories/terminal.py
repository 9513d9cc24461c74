"""What a terminal shows of a report, and texts that nobody should show as they are."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console

from breakeven.report import show

# What scripts, modules and functions may be called, for each way in which a name can do harm.
HOSTILE = (
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "two\nlines\r\ttabs",
    "caf\udce9.py",
    "\u202egpj.exe\u2066",
    "[bold]markup[/bold] [link=http://x]",
    "x" * 10_000,
    "/".join(["folder"] * 2_000) + "/train.py",
    "a." * 5_000,
    "<script>alert(1)</script>",
    "",
)


def shown(
    report: Any,
    columns: int = 80,
    *,
    encoding: str = "utf-8",
    shows: Callable[..., None] = show,
    **terminal: Any,
) -> str:
    """Return what a terminal of so many columns and this encoding shows of a report.

    Args:
        report: What ``shows`` is given, with the console.
        columns: The terminal's width.
        encoding: The terminal's; what it lacks becomes ``?``.
        shows: Writes the report to a console.
        **terminal: What else a ``Console`` is made with.
    """
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="replace", newline="\n")
    shows(report, Console(file=file, width=columns, **terminal))
    file.flush()
    return raw.getvalue().decode(encoding)


def flat(text: str) -> str:
    """Return the text in one line, each space once."""
    return " ".join(text.split())

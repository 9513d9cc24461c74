"""The terminal output of a report, and texts that no report may show unescaped."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console

from breakeven.report import show

# Possible names of scripts, modules and functions: one for each way in which a name can do harm.
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
    """Return the output of a report on a terminal of this width and encoding.

    Args:
        report: The report that ``shows`` writes.
        columns: The terminal's width.
        encoding: The terminal's encoding; characters outside it become ``?``.
        shows: Writes the report to a console.
        **terminal: Further arguments of ``Console``.
    """
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="replace", newline="\n")
    shows(report, Console(file=file, width=columns, **terminal))
    file.flush()
    return raw.getvalue().decode(encoding)


def flat(text: str) -> str:
    """Return the text on one line, with single spaces."""
    return " ".join(text.split())

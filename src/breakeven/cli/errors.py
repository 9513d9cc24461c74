"""Errors as a person reads them: what, where, the script's last words, and what to do."""

from __future__ import annotations

from collections import deque

from rich.console import Console
from rich.text import Text

from breakeven.cli.console import CommandConsole
from breakeven.errors import BreakevenError, ScriptError
from breakeven.report import printable

_NUM_OUTPUT_LINES = 20
_MAX_MESSAGE_LINES = 40


def show_error(error: BreakevenError, console: Console | None = None) -> None:
    """Write ``error: …``, its place and output for a ``ScriptError``, and ``hint: …``.

    Args:
        error: What went wrong.
        console: Where to; stderr unless given.
    """
    if console is None:
        console = CommandConsole(stderr=True)
    lines = [Text.assemble(("error: ", "bold red"), _block(error.message))]
    if isinstance(error, ScriptError):
        if error.file is not None:
            place = printable(error.file, None)
            if error.line is not None:
                place += f":{error.line}"
            lines.append(Text(f"  at {place}"))
        last_lines = deque(error.output.splitlines(), maxlen=_NUM_OUTPUT_LINES)
        if last_lines:
            lines.append(Text("  the script's last output:", style="dim"))
            lines.extend(
                Text.assemble(("  | ", "dim"), printable(line.expandtabs())) for line in last_lines
            )
    if error.hint:
        lines.append(Text.assemble(("hint: ", "bold cyan"), _block(error.hint)))
    for line in lines:
        # Soft wrap: a path or command in a log file stays in one piece.
        console.print(line, soft_wrap=True)


def _block(text: str) -> str:
    lines = [printable(line, 1000) for line in text.splitlines()[:_MAX_MESSAGE_LINES]]
    return "\n  ".join(lines)

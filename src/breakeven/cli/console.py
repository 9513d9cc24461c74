"""The terminal for commands, and errors formatted for a person."""

from __future__ import annotations

import re
import sys
from collections import deque
from typing import TextIO, cast

from rich.console import Console
from rich.text import Text

from breakeven.errors import BreakevenError, ScriptError
from breakeven.report import printable
from breakeven.trace import line_text

# Invisible trailing whitespace; colours of table cells are kept.
_UNSEEN = re.compile(r"[ \t]+(?=\n|\Z)")


class CommandConsole(Console):
    """A console that leaves a broken pipe to ``main``, which has an exit code for it.

    Trailing whitespace is removed, unless output goes to a terminal.

    Args:
        file: Output stream; stdout by default.
        stderr: Whether to write to stderr instead.
    """

    def __init__(self, *, file: TextIO | None = None, stderr: bool = False) -> None:
        stream = file or (sys.stderr if stderr else sys.stdout)
        file = stream if stream.isatty() else cast("TextIO", _Trimmed(stream))
        # In a notebook, rich would ignore the stream.
        super().__init__(file=file, force_jupyter=False)

    def on_broken_pipe(self) -> None:
        """Re-raise the ``BrokenPipeError`` being handled; rich would exit with 1."""
        raise


class _Trimmed:
    """A file that strips trailing whitespace; rich writes whole lines.

    Args:
        file: The underlying file.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write lines, and return their number of characters."""
        self._file.write(_UNSEEN.sub("", text))
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


_NUM_OUTPUT_LINES = 20
_MAX_MESSAGE_LINES = 40


def show_error(error: BreakevenError, console: Console | None = None) -> None:
    """Write ``error: …``, its place and output for a ``ScriptError``, and ``hint: …``.

    Args:
        error: The error to show.
        console: The console; stderr by default.
    """
    if console is None:
        console = CommandConsole(stderr=True)
    lines = [Text.assemble(("error: ", "bold red"), _block(error.message))]
    if isinstance(error, ScriptError):
        if error.file is not None:
            place = printable(error.file, None)
            if error.line is not None:
                place += line_text(error.file, error.line)
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
        # Soft wrap keeps a path or command in a log file unbroken.
        console.print(line, soft_wrap=True)


def _block(text: str) -> str:
    lines = [printable(line, 1000) for line in text.splitlines()[:_MAX_MESSAGE_LINES]]
    return "\n  ".join(lines)

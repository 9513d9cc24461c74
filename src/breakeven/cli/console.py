"""The terminal that commands write to."""

from __future__ import annotations

import re
import sys
from typing import TextIO, cast

from rich.console import Console

# Whatever is at the end of a line and cannot be seen, colours of a table's cells left alone.
_UNSEEN = re.compile(r"[ \t]+(?=\n|\Z)")


class CommandConsole(Console):
    """A console that leaves a broken pipe to ``main``, which has an exit code for it.

    Lines end where their text does, unless they go to a terminal.

    Args:
        file: Where to; stdout by default.
        stderr: To stderr instead.
    """

    def __init__(self, *, file: TextIO | None = None, stderr: bool = False) -> None:
        stream = file or (sys.stderr if stderr else sys.stdout)
        super().__init__(file=stream if stream.isatty() else cast("TextIO", _Trimmed(stream)))

    def on_broken_pipe(self) -> None:
        """Raise the ``BrokenPipeError`` that is being handled, where rich would exit with 1."""
        raise


class _Trimmed:
    """A file whose lines have nothing unseen at their end; rich writes whole lines.

    Args:
        file: The file itself.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write lines, and return how many characters they had."""
        self._file.write(_UNSEEN.sub("", text))
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

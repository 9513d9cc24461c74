"""The terminal that commands write to."""

from __future__ import annotations

from rich.console import Console


class CommandConsole(Console):
    """A console that leaves a reader's going away to ``main``, which has an exit code for it."""

    def on_broken_pipe(self) -> None:
        """Raise the ``BrokenPipeError`` that is being handled, where rich would exit with 1."""
        raise

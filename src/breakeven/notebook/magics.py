"""``%breakeven COMMAND`` runs a command; ``%%breakeven`` checks the step in a cell.

Import neither torch nor rich here: ``%load_ext breakeven`` should take no time.
"""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from breakeven.cli.dispatch import run_command
from breakeven.cli.output import FRONT, Front
from breakeven.errors import BreakevenError, UsageError
from breakeven.notebook.cell import answer_of_cell, parse_options

if TYPE_CHECKING:
    import msgspec

    from breakeven.studies import Report


class ShownError(Exception):
    """An error that a notebook shows as text, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows."""
        return str(self).splitlines()


class Interrupted(KeyboardInterrupt):
    """The user interrupted the kernel."""

    def _render_traceback_(self) -> list[str]:
        return ["interrupted"]


def load_ipython_extension(shell: Any) -> None:
    """Register the magics; IPython calls this at ``%load_ext breakeven``.

    Args:
        shell: The ``InteractiveShell``.
    """
    shell.register_magic_function(partial(_answer, shell), "line_cell", "breakeven")


def _answer(shell: Any, line: str, cell: str | None = None) -> Report | None:
    """Return the report of a magic; None if a command has none."""
    draw, last = _line_of(shell), ""
    try:
        words = _words(line)
        if cell is None:
            return _answer_of_command(words, draw)
        options = parse_options(words)
        if draw:
            draw("breakeven: running this cell as a training step")
        report, last = answer_of_cell(shell, options, cell)
        return report
    except BreakevenError as error:
        raise ShownError(_text_of(error)) from None
    except KeyboardInterrupt:
        raise Interrupted from None
    except SystemExit:  # after --help
        return None
    finally:
        if draw:
            draw(last)
        elif last:
            sys.stdout.write(f"{last}\n")


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{error}: {line}") from None


def _answer_of_command(words: list[str], draw: Callable[[str], None] | None) -> Report | None:
    """Run a command, and return its last report.

    Args:
        words: The command line, without the program.
        draw: See `breakeven.cli.output.Front`.

    Raises:
        BreakevenError: The command has no answer, or would end this process.
    """
    if words[:1] in (["run"], ["mcp"]):
        raise UsageError(
            f"breakeven {words[0]} would replace this kernel",
            hint=f"run it in a process of its own, for a script: !breakeven {shlex.join(words)}",
        )
    reports: list[msgspec.Struct] = []
    token = FRONT.set(Front(reports.append, draw))
    try:
        run_command(words)
    finally:
        FRONT.reset(token)
    if not reports:
        return None
    from breakeven.studies import Report

    return Report(reports[-1])


def _line_of(shell: Any) -> Callable[[str], None] | None:
    """Return a function that replaces one line below the cell; None in a terminal."""
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display

    handles: list[Any] = []

    def draw(text: str) -> None:
        if handles:
            handles[0].update({"text/plain": text}, raw=True)
        elif text:
            handles.append(display({"text/plain": text}, raw=True, display_id=True))

    return draw


def _text_of(error: BreakevenError) -> str:
    from rich.console import Console

    from breakeven.cli.console import show_error

    text = io.StringIO()
    show_error(error, Console(file=text, force_terminal=False, force_jupyter=False))
    return text.getvalue().rstrip()

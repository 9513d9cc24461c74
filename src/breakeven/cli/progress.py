"""What breakeven is doing, on stderr: a live line at a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO, TypeVar

from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from breakeven.cli.console import CommandConsole
from breakeven.report import printable

if TYPE_CHECKING:
    from breakeven.progress import Progress

_REFRESHES_PER_S = 10


class _Drawn(Protocol):
    def renderable(self) -> Group: ...


_Live = TypeVar("_Live", bound=_Drawn)
_Plain = TypeVar("_Plain")


@contextmanager
def show_progress(stream: TextIO, *, is_quiet: bool) -> Iterator[Progress]:
    """Yield a progress that suits ``stream``, and clear what it shows at the end.

    Args:
        stream: Usually stderr.
        is_quiet: Show nothing at all.
    """
    with draw(stream, LiveProgress(), PlainProgress(stream), is_quiet=is_quiet) as progress:
        yield progress


@contextmanager
def draw(stream: TextIO, live: _Live, plain: _Plain, *, is_quiet: bool) -> Iterator[_Live | _Plain]:
    """Yield the progress that suits ``stream``, and clear what it shows at the end.

    Args:
        stream: Usually stderr.
        live: Is redrawn in place, at a terminal.
        plain: Writes lines, elsewhere.
        is_quiet: Show nothing at all.
    """
    if is_quiet:  # nothing draws it
        yield live
        return
    console = CommandConsole(file=stream)
    if not console.is_terminal or console.is_dumb_terminal:
        yield plain
        return
    with Live(
        get_renderable=live.renderable,
        console=console,
        refresh_per_second=_REFRESHES_PER_S,
        transient=True,
        # The user's answer and our errors have their own streams.
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield live


class PlainProgress:
    """One line per stage, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """Write the stage's line."""
        about = "" if expected_s is None else f" (about {_seconds(expected_s)})"
        self._stream.write(f"{printable(stage)}{about}\n")
        self._stream.flush()

    def detail(self, text: str) -> None:
        """Show nothing: a log is not a place for every step."""

    def end(self) -> None:
        """Show nothing."""


class LiveProgress:
    """The stages so far and the running one, redrawn in place.

    Args:
        now_s: Clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._spinner = Spinner("dots", style="cyan")
        self._finished: list[tuple[str, float]] = []
        self._stage: str | None = None
        self._started_s = 0.0
        self._expected_s: float | None = None
        self._detail = ""

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """Show the stage as running, the one before it as done."""
        self.end()
        self._stage = printable(stage)
        self._started_s = self._now_s()
        self._expected_s = expected_s
        self._detail = ""

    def detail(self, text: str) -> None:
        """Show the text behind the running stage."""
        self._detail = printable(text)

    def end(self) -> None:
        """Show the running stage as done."""
        if self._stage is not None:
            self._finished.append((self._stage, self._now_s() - self._started_s))
        self._stage = None

    def renderable(self) -> Group:
        """Return what the terminal shows now."""
        lines: list[Text | Table] = [
            _line(f"✓ {stage}  {_seconds(elapsed_s)}", style="dim")
            for stage, elapsed_s in self._finished
        ]
        stage = self._stage
        if stage is not None:
            clock = _seconds(self._now_s() - self._started_s)
            if self._expected_s is not None:
                clock += f" of about {_seconds(self._expected_s)}"
            row = Table.grid(padding=(0, 1, 0, 0))
            row.add_row(self._spinner, _line(f"{stage}  {clock}  {self._detail}".rstrip()))
            lines.append(row)
        return Group(*lines)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _seconds(duration_s: float) -> str:
    # One unit throughout: a clock that changes from ms to s is hard to read while it runs.
    return f"{duration_s:.1f} s" if duration_s < 10 else f"{duration_s:.0f} s"

"""Progress on stderr: live lines in a terminal, plain ones in a log.

A sweep also shows a bar and its last points, or a line for each point.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from breakeven.cli.console import CommandConsole
from breakeven.cli.output import FRONT
from breakeven.report import printable, settings_text
from breakeven.timing import Source
from breakeven.units import NS_PER_S, format_duration
from breakeven.verdict import AxisValue, DeviceKind, SweepPoint

_REFRESHES_PER_S = 10
# A notebook stores and sends each change of its line.
_DRAWN_PER_S = 4
# Number of stages and of points shown for a sweep, which has many.
_MOST_LINES = 4
_BAR_CHARACTERS = 24


@contextmanager
def show_progress(
    stream: TextIO, *, is_quiet: bool
) -> Iterator[LiveProgress | PlainProgress | LineProgress]:
    """Yield a progress display that suits ``stream``, and clear it at the end.

    Args:
        stream: Usually stderr.
        is_quiet: Whether to show nothing.
    """
    front = FRONT.get()
    console = CommandConsole(file=stream)
    live = LiveProgress()
    if is_quiet:  # never drawn
        yield live
    elif front is not None and front.draw is not None:
        yield LineProgress(front.draw)
    elif not console.is_terminal or console.is_dumb_terminal:
        yield PlainProgress(stream)
    else:
        # The answer and our errors have their own streams.
        with Live(
            get_renderable=live.renderable,
            console=console,
            refresh_per_second=_REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield live


class PlainProgress:
    """One line per stage and per point of a grid, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """Write the stage's line."""
        about = "" if expected_s is None else f" (about {_seconds(expected_s)})"
        self._stream.write(f"{printable(stage)}{about}\n")
        self._stream.flush()

    def detail(self, text: str) -> None:
        """Show nothing: a log does not need every step."""

    def end(self) -> None:
        """Show nothing."""

    def finished(self, points: Sequence[SweepPoint], num_done: int, num_points: int) -> None:
        """Write a line for each point of the grid, or their number if there are many."""
        lines = _point_lines(points) or ["no answer"]
        if len(lines) > _MOST_LINES:  # at once
            lines = [f"{len(lines):,} points done"]
        for line in lines:
            self._stream.write(f"[{num_done:,}/{num_points:,}] {line}\n")
        self._stream.flush()


class LineProgress:
    """One line that changes, for notebooks.

    Args:
        draw: Replaces the line.
        now_s: Clock, in seconds.
    """

    def __init__(
        self, draw: Callable[[str], None], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._draw = draw
        self._now_s = now_s
        self._stage = ""
        self._drawn_s = 0.0

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """Show the stage."""
        about = "" if expected_s is None else f" (about {_seconds(expected_s)})"
        self._stage = f"breakeven: {printable(stage)}{about}"
        self._draw(self._stage)

    def detail(self, text: str) -> None:
        """Show the text after the stage, but not more often than a notebook can draw it."""
        now_s = self._now_s()
        if now_s - self._drawn_s >= 1 / _DRAWN_PER_S:
            self._drawn_s = now_s
            self._draw(f"{self._stage}: {printable(text)}")

    def end(self) -> None:
        """Show nothing: the line is cleared with the answer."""

    def finished(self, points: Sequence[SweepPoint], num_done: int, num_points: int) -> None:
        """Show how many points of a grid are done."""
        self._draw(f"{self._stage}: {num_done:,} of {num_points:,} points")


class LiveProgress:
    """Finished stages and the running one, redrawn in place; for a grid, its last points too.

    This is our own code: rich's progress has neither permanent stages nor a list of points.

    Args:
        now_s: Clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._begun_s = now_s()
        self._points: list[str] = []
        self._num_done = self._num_points = 0
        self._spinner = Spinner("dots", style="cyan")
        self._done: list[str] = []
        # Name, start, and expected duration.
        self._stage: tuple[str, float, str] | None = None
        self._detail = ""

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """Show the stage as running, and the previous one as done."""
        self.end()
        about = "" if expected_s is None else f" of about {_seconds(expected_s)}"
        self._stage = (printable(stage), self._now_s(), about)
        self._detail = ""

    def detail(self, text: str) -> None:
        """Show the text after the running stage."""
        self._detail = printable(text)

    def end(self) -> None:
        """Show the running stage as done."""
        if self._stage is not None:
            stage, begun_s, _ = self._stage
            self._done.append(f"✓ {stage}  {_seconds(self._now_s() - begun_s)}")
        self._stage = None

    def finished(self, points: Sequence[SweepPoint], num_done: int, num_points: int) -> None:
        """Add the points to the list and advance the bar."""
        self._points += _point_lines(points)
        self._num_done, self._num_points = num_done, num_points

    def renderable(self) -> Group:
        """Return the current lines of the display."""
        # Another thread than the measuring one draws: take a snapshot first.
        running = self._stage
        lines: list[RenderableType] = [_line(text, "dim") for text in self._done]
        if running is not None:
            stage, begun_s, about = running
            text = f"{stage}  {_seconds(self._now_s() - begun_s)}{about}  {self._detail}"
            lines.append(_row(self._spinner, text.rstrip()))
        if not self._num_points:
            return Group(*lines)
        text = f"{self._num_done:,} of {self._num_points:,} points"
        num_left = self._num_points - self._num_done
        if self._num_done and num_left > 0:
            left_s = (self._now_s() - self._begun_s) / self._num_done * num_left
            text += f", about {format_duration(max(left_s, 1) * NS_PER_S, 2)} left"
        bar = ProgressBar(self._num_points, self._num_done, width=_BAR_CHARACTERS)
        lines = [*lines[-_MOST_LINES:], _row(bar, text)]
        return Group(*lines, *map(_line, self._points[-_MOST_LINES:]))


def _point_lines(points: Sequence[SweepPoint]) -> list[str]:
    """Return a line for each point of a grid, with the fastest device of each kind."""
    rows: dict[tuple[tuple[str, AxisValue], ...], list[SweepPoint]] = {}
    for point in points:
        rows.setdefault(tuple(point.settings.items()), []).append(point)
    lines: list[str] = []
    for key, row in rows.items():
        parts: list[str] = []
        for kind in DeviceKind:
            fitting = [point for point in row if point.kind is kind and point.fits is not False]
            if fitting:
                best = min(fitting, key=lambda point: point.step_ns)
                name = "CPU" if kind is DeviceKind.CPU else printable(best.device, 30)
                word = "measured" if best.source is Source.MEASURED else "predicted"
                parts.append(f"{name} {format_duration(best.step_ns, 2)} {word}")
        lines.append(f"{printable(settings_text(dict(key)), 60)}: {', '.join(parts)}")
    return lines


def _row(first: RenderableType, text: str) -> Table:
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(first, _line(text))
    return row


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _seconds(duration_s: float) -> str:
    # Use one unit throughout: a clock that switches from ms to s is hard to read.
    return f"{duration_s:.1f} s" if duration_s < 10 else f"{duration_s:.0f} s"

"""What breakeven is doing, on stderr: live lines at a terminal, plain ones in a log.

A sweep also shows how far it is: a bar and a table that grows, or a line for each point.
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
from breakeven.report import printable, settings_text
from breakeven.timing import Source
from breakeven.units import NS_PER_S, format_duration
from breakeven.verdict import AxisValue, DeviceKind, SweepPoint

_REFRESHES_PER_S = 10
# Of a sweep, which has many.
_MAX_STAGES = 4
_BAR_CHARACTERS = 24
# What else stands on the screen: the stages, the bar, the table's header, the prompt.
_OTHER_ROWS = _MAX_STAGES + 5
_LEAST_ROWS = 3
# More points at once than this are counted in a log, not listed.
_MOST_LISTED = 4
_S_PER_MIN = 60


@contextmanager
def show_progress(
    stream: TextIO, *, is_quiet: bool, has_points: bool = False
) -> Iterator[LiveProgress | PlainProgress]:
    """Yield a progress that suits ``stream``, and clear what it shows at the end.

    Args:
        stream: Usually stderr.
        is_quiet: Show nothing at all.
        has_points: Show the points of a grid as they are done.
    """
    console = CommandConsole(file=stream)
    num_rows = max(console.height - _OTHER_ROWS, _LEAST_ROWS) if has_points else 0
    live = LiveProgress(num_rows=num_rows)
    if is_quiet:  # nothing draws it
        yield live
        return
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainProgress(stream)
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
    """One line per stage, and one per point of a grid, for logs and pipes."""

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

    def finished(self, points: Sequence[SweepPoint], num_done: int, num_points: int) -> None:
        """Write a line for each point of the grid, or for their number where there are many."""
        rows = _by_settings(points)
        if not rows:
            lines = ["no answer"]
        elif len(rows) > _MOST_LISTED:
            lines = [f"{len(rows):,} points done"]
        else:
            lines = [f"{settings}: {_devices_text(row)}" for settings, row in rows.items()]
        for line in lines:
            self._stream.write(f"[{num_done:,}/{num_points:,}] {line}\n")
        self._stream.flush()


class LiveProgress:
    """The stages so far and the running one, redrawn in place; of a grid, its last points too.

    Args:
        now_s: Clock, in seconds.
        num_rows: Points shown at once, and with them the last stages alone; 0 without a grid.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic, *, num_rows: int = 0) -> None:
        self._now_s = now_s
        self._num_rows = num_rows
        self._begun_s = now_s()
        self._rows: dict[str, list[SweepPoint]] = {}
        self._num_done = 0
        self._num_points = 0
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

    def finished(self, points: Sequence[SweepPoint], num_done: int, num_points: int) -> None:
        """Add the points to the table and move the bar."""
        for settings, row in _by_settings(points).items():
            # The last to finish stands last, also where it was known before.
            self._rows.pop(settings, None)
            self._rows[settings] = row
        self._num_done, self._num_points = num_done, num_points

    def renderable(self) -> Group:
        """Return what the terminal shows now."""
        lines: list[RenderableType] = [
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
        if not self._num_rows:
            return Group(*lines)
        # Drawn by another thread than the one that measures: take what there is at once.
        rows = list(self._rows.items())[-self._num_rows :]
        lines = lines[-_MAX_STAGES:]
        if self._num_points:
            lines.append(self._bar())
        if rows:
            lines.append(_table(rows))
        return Group(*lines)

    def _bar(self) -> Table:
        text = f"{self._num_done:,} of {self._num_points:,} points"
        left_s = self._left_s()
        if left_s is not None:
            text += f", about {_duration(left_s)} left"
        grid = Table.grid(padding=(0, 1, 0, 0))
        bar = ProgressBar(total=self._num_points, completed=self._num_done, width=_BAR_CHARACTERS)
        grid.add_row(bar, Text(text, no_wrap=True, overflow="ellipsis"))
        return grid

    def _left_s(self) -> float | None:
        num_left = self._num_points - self._num_done
        if self._num_done == 0 or num_left <= 0:
            return None
        return (self._now_s() - self._begun_s) / self._num_done * num_left


def _by_settings(points: Sequence[SweepPoint]) -> dict[str, list[SweepPoint]]:
    rows: dict[tuple[tuple[str, AxisValue], ...], list[SweepPoint]] = {}
    for point in points:
        rows.setdefault(tuple(point.settings.items()), []).append(point)
    return {printable(settings_text(dict(key)), 60): row for key, row in rows.items()}


def _table(rows: Sequence[tuple[str, list[SweepPoint]]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for header in ("point", "CPU", "fastest GPU"):
        table.add_column(header, no_wrap=True, overflow="ellipsis")
    for settings, points in rows:
        cpu, gpu = _fastest(points, DeviceKind.CPU), _fastest(points, DeviceKind.GPU)
        table.add_row(
            Text(settings),
            Text("-" if cpu is None else _time_text(cpu)),
            Text("-" if gpu is None else f"{_time_text(gpu)}  {printable(gpu.device, 30)}"),
        )
    return table


def _devices_text(points: Sequence[SweepPoint]) -> str:
    cpu, gpu = _fastest(points, DeviceKind.CPU), _fastest(points, DeviceKind.GPU)
    parts = [] if cpu is None else [f"CPU {_time_text(cpu)}"]
    if gpu is not None:
        parts.append(f"{printable(gpu.device, 30)} {_time_text(gpu)}")
    return ", ".join(parts)


def _fastest(points: Sequence[SweepPoint], kind: DeviceKind) -> SweepPoint | None:
    fitting = [point for point in points if point.kind is kind and point.fits is not False]
    return min(fitting, key=lambda point: point.step_ns, default=None)


def _time_text(point: SweepPoint) -> str:
    word = "measured" if point.source is Source.MEASURED else "predicted"
    return f"{format_duration(point.step_ns, 2)} {word}"


def _duration(duration_s: float) -> str:
    if duration_s >= 2 * _S_PER_MIN:
        return f"{round(duration_s / _S_PER_MIN)} min"
    return format_duration(max(duration_s, 1) * NS_PER_S, 2)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _seconds(duration_s: float) -> str:
    # One unit throughout: a clock that changes from ms to s is hard to read while it runs.
    return f"{duration_s:.1f} s" if duration_s < 10 else f"{duration_s:.0f} s"

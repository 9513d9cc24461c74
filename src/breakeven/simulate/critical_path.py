"""The way back from the end of a step: at each moment, what the rest of it waited for.

A step that repeats has no first event; its critical path comes round to where it was, after one
step or after a few. One such round is what the time of a step is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from breakeven.simulate.priced_step import (
    COPY,
    LAUNCHED,
    LOADER,
    ON_DEVICE,
    SYNC,
    Point,
    PricedStep,
)
from breakeven.simulate.replay import LAUNCH_QUEUE_DEPTH, NO_WAIT, UNLOGGED, LoggedPoint, Replay

# Steps that are replayed to find a round. A path that alternates needs two or three, and its
# beginning, from the end of the device's work to what it waits for, may take another: most come
# round within the first number.
_LOGGED_STEPS = (3, 8)


class Spent(Enum):
    """What a piece of the path is."""

    ISSUE = auto()
    """The host's work up to a point, its first launch included."""

    MORE_LAUNCHES = auto()
    LEAD = auto()
    """What the host does before the first point."""

    SYNC = auto()
    COPY = auto()
    KERNEL = auto()
    LATENCY = auto()
    GAP = auto()
    LOADER = auto()

    @property
    def is_on_device(self) -> bool:
        """Return whether the device is what works, or what is waited for, meanwhile."""
        return self in (Spent.COPY, Spent.KERNEL, Spent.LATENCY, Spent.GAP)


class _Track(Enum):
    HOST = auto()
    """The host has gone on from a point."""

    LAUNCHED = auto()
    """It has launched the first kernel of a point."""

    DEVICE = auto()
    """The device is through with a point."""

    STARTED = auto()
    """It is within a point: a launch has left the queue."""

    LOADER = auto()


_Place = tuple[int, _Track]
"""A position in the log, and what is looked at there."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the critical path.

    Args:
        point: Position in the priced step.
        spent: What on.
        time_ns: How long.
    """

    point: int
    spent: Spent
    time_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """One round of the critical path.

    Args:
        pieces: The latest first.
        num_steps: Steps that the round takes; 0 where the path did not come round within those
            that were looked at, and the pieces are of all of them.
        period_ns: Time of a step, if neither timeline slowed the other down.
    """

    pieces: tuple[Piece, ...]
    num_steps: int
    period_ns: float


def critical_path(
    step: PricedStep[float], *, queue_depth: int = LAUNCH_QUEUE_DEPTH
) -> CriticalPath:
    """Return one round of the critical path of a step that is repeated.

    Args:
        step: The step.
        queue_depth: Launches that may wait.
    """
    replay = Replay(step, queue_depth)
    period_ns = replay.settle()
    pieces, num_steps = (), 0
    for length in _LOGGED_STEPS if step.points else ():
        pieces, num_steps = _Walk(step, replay.logged(length)).round()
        if num_steps:
            break
    return CriticalPath(pieces=pieces, num_steps=num_steps, period_ns=period_ns)


class _Walk:
    """Goes back through what a replay saw, from its end."""

    def __init__(self, step: PricedStep[float], log: list[LoggedPoint]) -> None:
        self._step = step
        self._log = log
        self._pieces: list[Piece] = []
        end = log[-1]
        self._now_ns = max(end.host_ns, end.device_ns)

    def round(self) -> tuple[tuple[Piece, ...], int]:
        """Return one round, and its steps."""
        end = self._log[-1]
        at = (
            (len(self._log) - 1, _Track.HOST)
            if end.host_ns >= end.device_ns
            else self._before(len(self._log), _Track.DEVICE)
        )
        seen: dict[tuple[int, _Track], tuple[int, int]] = {}
        while at is not None:
            index, track = at
            step, point = divmod(index, len(self._step.points))
            if (point, track) in seen:
                first_step, first_piece = seen[point, track]
                return tuple(self._pieces[first_piece:]), first_step - step
            seen[point, track] = step, len(self._pieces)
            at = self._back(index, track)
        return tuple(self._pieces), 0

    def _back(self, index: int, track: _Track) -> _Place | None:
        """Return what a place waited for; None where that is before the log."""
        match track:
            case _Track.HOST:
                return self._back_on_host(index)
            case _Track.LAUNCHED:
                return self._back_from_launch(index)
            case _Track.DEVICE | _Track.STARTED:
                return self._back_on_device(index)
            case _Track.LOADER:
                self._spend(index, Spent.LOADER, self._log[index].loader_before_ns)
                return self._before(index, _Track.LOADER)

    def _back_on_host(self, index: int) -> _Place | None:
        logged = self._log[index]
        kind, _, own_ns, launches = self._point(index)
        if kind in LAUNCHED:
            if launches is not None:
                self._spend(index, Spent.MORE_LAUNCHES, logged.host_ns - launches.more_ns)
            return index, _Track.LAUNCHED
        if kind in (SYNC, COPY):
            spent = Spent.SYNC if kind == SYNC else Spent.COPY
            self._spend(index, spent, logged.host_ns - own_ns)
            if logged.device_before_ns > logged.issued_ns:
                return self._before(index, _Track.DEVICE)
        if kind == LOADER and logged.loader_ns > logged.issued_ns:
            return index, _Track.LOADER
        return self._back_to_issue(index)

    def _back_from_launch(self, index: int) -> _Place | None:
        blocker = self._log[index].blocker
        if blocker == UNLOGGED:
            return None
        return self._back_to_issue(index) if blocker == NO_WAIT else (blocker, _Track.STARTED)

    def _back_to_issue(self, index: int) -> _Place | None:
        self._spend(index, Spent.ISSUE, self._log[index].host_before_ns)
        if index == 0:
            return None
        # Differs at the beginning of a step alone.
        self._spend(index, Spent.LEAD, self._log[index - 1].host_ns)
        return index - 1, _Track.HOST

    def _back_on_device(self, index: int) -> _Place | None:
        logged = self._log[index]
        kind, _, own_ns, launches = self._point(index)
        if kind == COPY:
            return index, _Track.HOST
        gap_ns = self._step.gap_ns
        if launches is not None:
            if logged.device_ns > logged.start_ns + own_ns:
                # The last launch came late: nothing before it held it back.
                self._spend(index, Spent.KERNEL, logged.device_ns - launches.last_ns)
                self._spend(index, Spent.LATENCY, logged.host_ns)
                return index, _Track.HOST
            gap_ns = launches.gap_ns
            gaps_fraction = (launches.count - 1) * gap_ns / own_ns if own_ns > 0 else 0.0
            within_ns = max(0.0, self._now_ns - logged.start_ns)
            self._spend(index, Spent.GAP, self._now_ns - gaps_fraction * within_ns)
        self._spend(index, Spent.KERNEL, logged.start_ns)
        if logged.start_ns > logged.device_before_ns + gap_ns:
            issued_ns = logged.host_ns if launches is None else logged.host_ns - launches.more_ns
            self._spend(index, Spent.LATENCY, issued_ns)
            return index, _Track.LAUNCHED
        self._spend(index, Spent.GAP, logged.device_before_ns)
        return self._before(index, _Track.DEVICE)

    def _before(self, index: int, track: _Track) -> _Place | None:
        """Return the last place before a point at which the device, or the loader, did a thing."""
        kinds = (LOADER,) if track is _Track.LOADER else ON_DEVICE
        while index > 0:
            index -= 1
            if self._point(index)[0] in kinds:
                return index, track
        return None

    def _point(self, index: int) -> Point:
        return self._step.points[index % len(self._step.points)]

    def _spend(self, index: int, spent: Spent, since_ns: float) -> None:
        """Go back to ``since_ns``."""
        if self._now_ns > since_ns:
            point = index % len(self._step.points)
            self._pieces.append(Piece(point, spent, self._now_ns - since_ns))
            self._now_ns = since_ns

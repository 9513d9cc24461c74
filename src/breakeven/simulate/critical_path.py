"""The critical path of a step, followed back from its end along the waits.

A repeated step has no first event; its critical path returns to a place after one step or a few.
One such round makes up the time of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from breakeven.simulate.cost_table import RowKind
from breakeven.simulate.priced_step import IS_ON_DEVICE, PricedStep
from breakeven.simulate.repeated_step import ROUNDING_NS, Moments, RepeatedStep, Waited

# Steps to record for a round, if the steps recorded so far have none. A path that alternates needs
# two or three, and its beginning, from the end of the device's work to the first wait, may need
# another.
_MORE_STEPS = 8


class Spent(Enum):
    """The kind of a piece of the path."""

    ISSUE = auto()
    """The host's work up to a point, its launches included."""

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
        """Return whether the device works during the piece, or the host waits for it."""
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
"""A position among the moments, and what is looked at there; below 0, it was not recorded."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the critical path.

    Args:
        point: Position in the priced step.
        spent: Kind of work or wait.
        time_ns: Its duration.
    """

    point: int
    spent: Spent
    time_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """One round of the critical path.

    Args:
        pieces: Pieces, the latest first.
        num_steps: Steps of the round; 0 if the path did not return within the recorded steps, so
            that the pieces are of all of them.
    """

    pieces: tuple[Piece, ...]
    num_steps: int


def critical_path(repeated: RepeatedStep) -> CriticalPath:
    """Return one round of the critical path of a step with a point for each row."""
    if not len(repeated.step.kinds):
        return CriticalPath(pieces=(), num_steps=0)
    found = _Walk(repeated.step, repeated.moments).round()
    return found if found.num_steps else _Walk(repeated.step, repeated.record(_MORE_STEPS)).round()


class _Walk:
    """Follows the waits back from the end of the recorded steps."""

    def __init__(self, step: PricedStep, moments: Moments) -> None:
        self._moments = moments
        self._kinds: list[int] = step.kinds.tolist()
        is_on_device = IS_ON_DEVICE[step.kinds] & ~step.is_free.ravel()
        self._is_on_device: list[bool] = is_on_device.tolist()
        self._counts: list[int] = step.counts.tolist()
        self._own_ns: list[float] = step.own_ns.ravel().tolist()
        self._last_ns = dict(zip(step.many.tolist(), step.last_ns.ravel().tolist(), strict=True))
        self._gap_ns: float = step.gap_ns.item()
        self._pieces: list[Piece] = []
        self._now_ns = max(self._moments.host_ns[-1], self._moments.device_ns[-1])

    def round(self) -> CriticalPath:
        """Return one round."""
        end = len(self._moments.host_ns)
        is_host = self._moments.host_ns[-1] >= self._moments.device_ns[-1]
        index, track = (end - 1, _Track.HOST) if is_host else self._before(end, _Track.DEVICE)
        seen: dict[_Place, tuple[int, int]] = {}
        while index >= 0:
            step, point = divmod(index, len(self._kinds))
            if (point, track) in seen:
                first_step, first_piece = seen[point, track]
                pieces = tuple(self._pieces[first_piece:])
                return CriticalPath(pieces=pieces, num_steps=first_step - step)
            seen[point, track] = step, len(self._pieces)
            match track:
                case _Track.HOST:
                    index, track = self._back_on_host(index, point)
                case _Track.LAUNCHED if self._moments.host_waited[index] == Waited.FOR_ROOM:
                    index, track = self._moments.made_room[index], _Track.STARTED
                case _Track.LAUNCHED:
                    index, track = self._back_to_issue(index)
                case _Track.DEVICE | _Track.STARTED:
                    index, track = self._back_on_device(index, point)
                case _Track.LOADER:
                    self._spend(index, Spent.LOADER, self._moments.loader_before_ns[index])
                    index, track = self._before(index, track)
        return CriticalPath(pieces=tuple(self._pieces), num_steps=0)

    def _back_on_host(self, index: int, point: int) -> _Place:
        kind, moments = self._kinds[point], self._moments
        if self._counts[point]:
            self._spend(index, Spent.ISSUE, moments.launched_ns[index])
            return index, _Track.LAUNCHED
        if kind in (RowKind.SYNC, RowKind.BLOCKING_COPY):
            spent = Spent.SYNC if kind == RowKind.SYNC else Spent.COPY
            self._spend(index, spent, moments.host_ns[index] - self._own_ns[point])
        if moments.host_waited[index] == Waited.FOR_DEVICE:
            return self._before(index, _Track.DEVICE)
        if moments.host_waited[index] == Waited.FOR_LOADER:
            return index, _Track.LOADER
        return self._back_to_issue(index)

    def _back_to_issue(self, index: int) -> _Place:
        self._spend(index, Spent.ISSUE, self._moments.host_before_ns[index])
        if index > 0:
            # The two times differ only at the beginning of a step.
            self._spend(index, Spent.LEAD, self._moments.host_ns[index - 1])
        return index - 1, _Track.HOST

    def _back_on_device(self, index: int, point: int) -> _Place:
        moments = self._moments
        if self._kinds[point] == RowKind.BLOCKING_COPY:
            return index, _Track.HOST
        if moments.device_waited[index] == Waited.FOR_LAST_LAUNCH:
            # The last launch came late: no earlier work delayed it.
            self._spend(index, Spent.KERNEL, moments.device_ns[index] - self._last_ns[point])
            self._spend(index, Spent.LATENCY, moments.host_ns[index])
            return index, _Track.HOST
        if self._counts[point] > 1 and self._own_ns[point] > 0:
            gaps_ns = (self._counts[point] - 1) * self._gap_ns
            within_ns = max(0.0, self._now_ns - moments.start_ns[index])
            self._spend(index, Spent.GAP, self._now_ns - gaps_ns / self._own_ns[point] * within_ns)
        self._spend(index, Spent.KERNEL, moments.start_ns[index])
        if moments.device_waited[index] == Waited.FOR_LAUNCH:
            self._spend(index, Spent.LATENCY, moments.launched_ns[index])
            return index, _Track.LAUNCHED
        self._spend(index, Spent.GAP, moments.device_before_ns[index])
        return self._before(index, _Track.DEVICE)

    def _before(self, index: int, track: _Track) -> _Place:
        """Return the previous place at which the device, or the loader, did work."""
        while (index := index - 1) >= 0:
            point = index % len(self._kinds)
            is_loader = self._kinds[point] == RowKind.LOADER
            if is_loader if track is _Track.LOADER else self._is_on_device[point]:
                break
        return index, track

    def _spend(self, index: int, spent: Spent, since_ns: float) -> None:
        """Record a piece back to ``since_ns``."""
        if self._now_ns - since_ns > ROUNDING_NS:
            point = index % len(self._kinds)
            self._pieces.append(Piece(point, spent, self._now_ns - since_ns))
            self._now_ns = since_ns

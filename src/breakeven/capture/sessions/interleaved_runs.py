"""Two interleaved runs: they take turns of a few steps, so that what disturbs one disturbs both."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

from breakeven.capture.messages import Answer, Paused
from breakeven.timing import Clock, TurnKind

if TYPE_CHECKING:
    from breakeven.measure import OtherLoad

# Not the stand-in that a script is given for it.
_exit = os._exit

# Long enough to hold several short steps and to fill the caches again, short enough that whatever
# holds up one run holds up its neighbour as well, and that there are a hundred turns to compare.
# Source: equal runs of one thread on a shared machine under load, 0.6 s of steps each: the mean
# ratio of neighbouring turns spreads by 0.5 to 1.7 %, that of two runs one after the other by 5 %.
# The threads of a pool spin on for some milliseconds after their last work, in the way of the other
# run's: turns of several threads last many times as long.
_TURN_NS = {TurnKind.SHORT: 4_000_000, TurnKind.LONG: 60_000_000}
# In these a run may use all processors: its first steps may compile, in several processes.
_FREE_TURNS = 3


def stay_on_one_processor() -> set[int]:
    """Keep the calling thread on the processor on which all turns are handed over.

    A run that waits elsewhere wakes up on an idle processor. A virtual machine may be without that
    one for as long as its host has other work: for 30 to 200 ms on a busy host, where the same
    processor goes on within microseconds.

    Returns:
        Where it was allowed to run before; empty if a thread may not choose, as on macOS.
    """
    if not hasattr(os, "sched_setaffinity"):
        return set()

    def rank(processor: int) -> tuple[int, int]:
        # Some are slower by design, and the first serves interrupts.
        path = Path(f"/sys/devices/system/cpu/cpu{processor}/cpufreq/cpuinfo_max_freq")
        try:
            return int(path.read_text()), processor
        except (OSError, ValueError):  # a virtual machine does not tell
            return 0, processor

    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(allowed, key=rank)})
    except OSError:  # a sandbox may forbid it
        return set()
    return allowed


def can_take_long_turns() -> bool:
    """Return whether idle threads of this process' OpenMP pool sleep within milliseconds.

    GNU's runtime lets them, which torch's own builds for Linux bring, unless ``OMP_WAIT_POLICY``
    says otherwise. LLVM's and Intel's let them spin for 200 ms, all through the other run's turn.

    Source: GCC's libgomp manual, GOMP_SPINCOUNT; LLVM's OpenMP documentation, KMP_BLOCKTIME.
    """
    try:
        loaded = Path("/proc/self/maps").read_text()
    except OSError:  # macOS, where the runtime is LLVM's
        return False
    is_gnu = "libgomp" in loaded and not any(name in loaded for name in ("libomp", "libiomp"))
    return is_gnu and os.environ.get("OMP_WAIT_POLICY", "").lower() != "active"


class Turns:
    """The turns of a run in its own process.

    Args:
        turn_fd: A byte is read from here when it is this run's turn.
        send: Tells the end of a turn.
        kind: Short turns are taken on one processor.
    """

    def __init__(self, turn_fd: int, send: Callable[[Paused], object], kind: TurnKind) -> None:
        self._turn_fd = turn_fd
        self._send = send
        self._kind = kind
        self._begun_ns = 0
        self._past_pauses_ns = 0
        self._pause_begun_ns: int | None = None
        self._clock: Clock | None = None
        # Of the turn that goes on; 0 before the first one. And of the turns in which updates ended.
        self.number = 0
        self.of_calls: list[int] = []
        # How long it was the other run's turn, by the clock of this one.
        self.stopped_ns = 0

    @property
    def paused_ns(self) -> int:
        """Return how long this run has waited for its turns, up to now."""
        begun_ns = self._pause_begun_ns
        now_ns = perf_counter_ns()
        return self._past_pauses_ns + (now_ns - begun_ns if begun_ns is not None else 0)

    def stop_in_pauses(self, clock: Clock) -> None:
        """Time pauses by a clock as well: of waking up, it may leave out a part itself."""
        self._clock = clock

    def wait(self, load: OtherLoad | None = None) -> None:
        """Wait for the next turn.

        Args:
            load: Does not count the others' turns.
        """
        begun_ns = self._pause_begun_ns = perf_counter_ns()
        stopped_ns = self._clock.now_ns() if self._clock else 0
        if self._kind is TurnKind.SHORT and self.number == _FREE_TURNS:
            stay_on_one_processor()
        if load is not None:
            load.pause()
        self._send(Paused())
        if not os.read(self._turn_fd, 1):
            _exit(0)  # there is nobody any more to tell an answer to
        if load is not None:
            load.resume()
        self.number += 1
        if self._clock is not None:
            self.stopped_ns += self._clock.now_ns() - stopped_ns
        self._begun_ns = perf_counter_ns()
        # In this order: a question meanwhile gets too much rather than too little.
        self._past_pauses_ns += self._begun_ns - begun_ns
        self._pause_begun_ns = None

    def end_step(self, load: OtherLoad | None) -> None:
        """End a step, and wait for the next turn if this one has lasted long enough.

        Args:
            load: Does not count the others' turns.
        """
        if perf_counter_ns() - self._begun_ns >= _TURN_NS[self._kind]:
            self.wait(load)


class TurnClock:
    """A clock that stands still while it is another run's turn.

    Args:
        clock: Tells the time.
        turns: Of this run.
    """

    def __init__(self, clock: Clock, turns: Turns) -> None:
        self._clock = clock
        self._turns = turns
        turns.stop_in_pauses(clock)

    def now_ns(self) -> int:
        """Return the time of this run's own turns, in nanoseconds since an arbitrary moment."""
        return self._clock.now_ns() - self._turns.stopped_ns

    def synchronize(self) -> None:
        """Wait until the device has done all that was issued."""
        self._clock.synchronize()


def alternate(
    runs: tuple[Generator[None, None, Answer], Generator[None, None, Answer]],
    kind: TurnKind,
    clock_ns: Callable[[], int] = perf_counter_ns,
) -> tuple[tuple[Answer, int], tuple[Answer, int]]:
    """Give two runs turns until both have answered; return the answers, and the time of each.

    Args:
        runs: Each ``next`` is a turn; the first of them gets the first turn.
        kind: Of the turns; short ones are handed over on one processor.
        clock_ns: Tells the time.
    """
    spent_ns = [0, 0]
    answers: dict[int, Answer] = {}
    allowed = stay_on_one_processor() if kind is TurnKind.SHORT else set[int]()
    try:
        while len(answers) < len(runs):
            for number, run in enumerate(runs):
                if number in answers:
                    continue
                begun_ns = clock_ns()
                try:
                    next(run)
                except StopIteration as end:
                    answers[number] = end.value
                spent_ns[number] += clock_ns() - begun_ns
    finally:
        if allowed:
            os.sched_setaffinity(0, allowed)
    return (answers[0], spent_ns[0]), (answers[1], spent_ns[1])

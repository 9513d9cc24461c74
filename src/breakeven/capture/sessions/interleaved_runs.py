"""Two interleaved runs, which take turns of a few steps, so that a disturbance affects both."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

from breakeven.capture.messages import Answer, Paused
from breakeven.timing import Clock, TurnKind

if TYPE_CHECKING:
    from breakeven.measure import OtherLoad, PoolWaits

# Keep the original: the script gets a stand-in.
_exit = os._exit

# A turn must hold several short steps and refill the caches. It must also be short: a disturbance
# should affect the neighbouring turn too, and a run should have a hundred turns to compare.
# Source: equal runs of one thread on a shared machine under load, 0.6 s of steps each. The mean
# ratio of neighbouring turns spreads by 0.5 to 1.7 %, that of two consecutive runs by 5 %.
# A pool's threads spin for some milliseconds after their last work, and delay the other run: turns
# of several threads last many times as long.
_TURN_NS = {TurnKind.SHORT: 4_000_000, TurnKind.LONG: 60_000_000}
# In these turns a run may use all processors: its first steps may compile, in several processes.
_FREE_TURNS = 3


def stay_on_one_processor() -> set[int]:
    """Keep the calling thread on the processor that all turns share.

    A run that waits elsewhere wakes up on an idle processor. A virtual machine's host may withhold
    that one during other work: for 30 to 200 ms if the host is busy. The same processor continues
    within microseconds.

    Returns:
        The processors allowed before; empty if a thread may not choose, as on macOS.
    """
    if not hasattr(os, "sched_setaffinity"):
        return set()

    def rank(processor: int) -> tuple[int, int]:
        # Some processors are slower by design, and the first serves interrupts.
        path = Path(f"/sys/devices/system/cpu/cpu{processor}/cpufreq/cpuinfo_max_freq")
        try:
            return int(path.read_text()), processor
        except (OSError, ValueError):  # a virtual machine does not report it
            return 0, processor

    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(allowed, key=rank)})
    except OSError:  # a sandbox may forbid it
        return set()
    return allowed


def can_take_long_turns() -> bool:
    """Return whether runs of several threads can take turns.

    The system must count the waits of threads: load delays several threads more than one. Idle
    threads of this process's OpenMP pool must sleep within milliseconds.

    GNU's runtime, in torch's own builds for Linux, lets them sleep unless ``OMP_WAIT_POLICY``
    forbids it. LLVM's and Intel's make them spin for 200 ms, throughout the other run's turn.

    Source: GCC's libgomp manual, GOMP_SPINCOUNT; LLVM's OpenMP documentation, KMP_BLOCKTIME.
    """
    try:
        Path("/proc/self/schedstat").stat()
        loaded = Path("/proc/self/maps").read_text()
    except OSError:  # such as macOS, where the runtime is LLVM's
        return False
    is_gnu = "libgomp" in loaded and not any(name in loaded for name in ("libomp", "libiomp"))
    return is_gnu and os.environ.get("OMP_WAIT_POLICY", "").lower() != "active"


class Turns:
    """The turns of a run, in the run's own process.

    Args:
        turn_fd: File descriptor with one byte for each turn of this run.
        send: Reports the end of a turn.
        kind: Kind of the turns; short ones share one processor.
    """

    def __init__(self, turn_fd: int, send: Callable[[Paused], object], kind: TurnKind) -> None:
        self._turn_fd = turn_fd
        self._send = send
        self._kind = kind
        self._begun_ns = 0
        self._past_pauses_ns = 0
        self._pause_begun_ns: int | None = None
        self._clock: Clock | None = None
        # Number of the current turn, 0 before the first; and the turn in which each update ended.
        self.number = 0
        self.of_calls: list[int] = []
        # Total time of the other run's turns, by this run's clock.
        self.stopped_ns = 0

    @property
    def paused_ns(self) -> int:
        """Return this run's total wait for its turns, up to now."""
        begun_ns = self._pause_begun_ns
        now_ns = perf_counter_ns()
        return self._past_pauses_ns + (now_ns - begun_ns if begun_ns is not None else 0)

    def stop_in_pauses(self, clock: Clock) -> None:
        """Time pauses by ``clock`` too: the clock itself may leave out a part of a wake-up."""
        self._clock = clock

    def wait(self, *counters: OtherLoad | PoolWaits | None) -> None:
        """Wait for the next turn.

        Args:
            counters: Counters of other load, to pause during the other run's turn.
        """
        running = [counter for counter in counters if counter is not None]
        begun_ns = self._pause_begun_ns = perf_counter_ns()
        stopped_ns = self._clock.now_ns() if self._clock else 0
        if self._kind is TurnKind.SHORT and self.number == _FREE_TURNS:
            stay_on_one_processor()
        for counter in running:
            counter.pause()
        self._send(Paused())
        if not os.read(self._turn_fd, 1):
            _exit(0)  # the parent has ended
        for counter in running:
            counter.resume()
        self.number += 1
        if self._clock is not None:
            self.stopped_ns += self._clock.now_ns() - stopped_ns
        self._begun_ns = perf_counter_ns()
        # Keep this order: a reader in between gets a value that is too large, not too small.
        self._past_pauses_ns += self._begun_ns - begun_ns
        self._pause_begun_ns = None

    def end_step(self, *counters: OtherLoad | PoolWaits | None) -> None:
        """End a step, and wait for the next turn if this one has lasted long enough.

        Args:
            counters: Counters of other load, to pause during the other run's turn.
        """
        if perf_counter_ns() - self._begun_ns >= _TURN_NS[self._kind]:
            self.wait(*counters)


class TurnClock:
    """A clock that stops during another run's turn.

    Args:
        clock: The underlying clock.
        turns: Turns of this run.
    """

    def __init__(self, clock: Clock, turns: Turns) -> None:
        self._clock = clock
        self._turns = turns
        turns.stop_in_pauses(clock)

    def now_ns(self) -> int:
        """Return the time of this run's own turns, in nanoseconds since an arbitrary moment."""
        return self._clock.now_ns() - self._turns.stopped_ns

    def synchronize(self) -> None:
        """Wait until the device has completed all issued work."""
        self._clock.synchronize()


def alternate(
    runs: tuple[Generator[None, None, Answer], Generator[None, None, Answer]],
    kind: TurnKind,
    clock_ns: Callable[[], int] = perf_counter_ns,
) -> tuple[tuple[Answer, int], tuple[Answer, int]]:
    """Give two runs turns until both have answered; return each answer with the run's time.

    Args:
        runs: Generators that take a turn per ``next``; the first one starts.
        kind: Kind of the turns; short ones share one processor.
        clock_ns: Returns the time in nanoseconds.
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

"""Two runs that take turns, a few steps each, so that whatever disturbs one disturbs both."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from time import perf_counter_ns
from typing import TYPE_CHECKING

import msgspec

from breakeven.capture._protocol import Answer, Paused
from breakeven.timing import Clock

if TYPE_CHECKING:
    from breakeven.measure import OtherLoad

# Long enough to hold many short steps, short enough that a neighbour's work, or a change of the
# clock rate, seldom falls into the turns of one run alone.
# Source: two equal runs on two cores of a shared machine: their ratio spreads by 1 to 6 % with
# turns of 20 to 50 ms, by 10 % where one runs after the other.
_TURN_NS = 30_000_000


class Turns:
    """The turns of a run in its own process.

    Args:
        turn_fd: A byte is read from here when it is this run's turn.
        answer_fd: Where the end of a turn is told.
    """

    def __init__(self, turn_fd: int, answer_fd: int) -> None:
        self._turn_fd = turn_fd
        self._answer_fd = answer_fd
        self._begun_ns = 0
        self._past_pauses_ns = 0
        self._pause_begun_ns: int | None = None

    @property
    def paused_ns(self) -> int:
        """Return how long this run has waited for its turns, up to now."""
        begun_ns = self._pause_begun_ns
        now_ns = perf_counter_ns()
        return self._past_pauses_ns + (now_ns - begun_ns if begun_ns is not None else 0)

    def wait(self) -> None:
        """Wait for the next turn."""
        begun_ns = self._pause_begun_ns = perf_counter_ns()
        os.write(self._answer_fd, msgspec.json.encode(Paused()) + b"\n")
        if not os.read(self._turn_fd, 1):
            os._exit(0)  # there is nobody any more to tell an answer to
        self._begun_ns = perf_counter_ns()
        # In this order: whoever asks meanwhile is told too much rather than too little.
        self._past_pauses_ns += self._begun_ns - begun_ns
        self._pause_begun_ns = None

    def end_step(self, load: OtherLoad | None) -> None:
        """End a step, and wait for the next turn where this one has lasted long enough.

        Args:
            load: Does not count the others' turns.
        """
        if perf_counter_ns() - self._begun_ns < _TURN_NS:
            return
        if load is not None:
            load.pause()
        self.wait()
        if load is not None:
            load.resume()


class OwnTime:
    """A clock that stands still while it is another run's turn.

    Args:
        clock: Tells the time.
        turns: Of this run.
    """

    def __init__(self, clock: Clock, turns: Turns) -> None:
        self._clock = clock
        self._turns = turns

    def now_ns(self) -> int:
        """Return the time of this run's own turns, in nanoseconds since an arbitrary moment."""
        return self._clock.now_ns() - self._turns.paused_ns

    def synchronize(self) -> None:
        """Wait until the device has done all that was issued."""
        self._clock.synchronize()


def alternate(
    runs: tuple[Generator[None, None, Answer], Generator[None, None, Answer]],
    clock_ns: Callable[[], int] = perf_counter_ns,
) -> tuple[tuple[Answer, int], tuple[Answer, int]]:
    """Give two runs turns until both have answered; return the answers, and the time of each.

    Args:
        runs: Each ``next`` is a turn; the first of them gets the first turn.
        clock_ns: Tells the time.
    """
    spent_ns = [0, 0]
    answers: dict[int, Answer] = {}
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
    return (answers[0], spent_ns[0]), (answers[1], spent_ns[1])

"""Time many small calls in turn, so that a disturbance falls on all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from breakeven.timing import Clock

_WARMUP_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Something that is timed once a round.

    Args:
        code: Its name among the others.
        call: What is timed.
        calls: How often it is called in a round.
        prepare: Called before each round, out of the time.
        must_finish: Whether the device's work counts: the clock waits for it in the end.
    """

    code: str
    call: Callable[[], object]
    calls: int
    prepare: Callable[[], object] | None = None
    must_finish: bool = False


def time_rounds(
    timed: Sequence[Timed], clock: Clock, num_rounds: int
) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return nanoseconds per call of each, one value a round; rounds to warm up do not count."""
    times = {item.code: np.zeros(num_rounds) for item in timed}
    for number in range(-_WARMUP_ROUNDS, num_rounds):
        for item in timed:
            if item.prepare is not None:
                item.prepare()
            clock.synchronize()
            started_ns = clock.now_ns()
            for _ in range(item.calls):
                item.call()
            if item.must_finish:
                clock.synchronize()
            elapsed_ns = clock.now_ns() - started_ns
            if number >= 0:
                times[item.code][number] = elapsed_ns / item.calls
    return times

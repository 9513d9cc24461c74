"""Time a script's steps as they pass by: for the plain run."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple

import torch

from breakeven.measure.busy_machine import PoolWaits, own_time_ns
from breakeven.timing import Clock, Measurement, find_round_ends, find_warmup
from breakeven.units import NS_PER_S

LEAST_SAMPLES = 5
PATIENCE = 2.0
MOST_SAMPLES = 2_000
# How often it is asked whether other work disturbed the samples.
_LOOK_EVERY_NS = 50_000_000
# Less of a step is no work that was seen to come again, but a step that was held up.
_RARE_SHARE = 0.1


class _StepEnd(NamedTuple):
    number: int
    call: int


class StepTimer:
    """Takes the time at each optimizer call and decides when that is enough.

    Args:
        clock: Host clock that can wait for the device.
        budget_s: Seconds of steps that are enough when they are short. Slow steps get more time,
            until there are two of them. A first step that is longer than that counts for nothing:
            it compiles, or loads data, and says little about those that follow.
        calls_per_mark: Calls of one optimizer between two readings of the clock. On a GPU waiting
            for the device at each step would hide the overlap of host and device, so several
            steps make one sample there.
        least_samples: Samples to wait for.
        patience: Times the budget; then two samples are enough.
        most_samples: However short the steps are.
        pool: Says how long threads that compute the steps were kept from running. Where that is
            much, a quiet moment is waited for as long as patience lasts.
        rare_patience: Times the budget for which more samples are waited for: if those so far
            differ much, or if work was seen between some of the steps, until it is known how often
            it comes.
        expects_rare_work: Whether it was seen before the first step, and will come again.
    """

    def __init__(
        self,
        clock: Clock,
        budget_s: float,
        calls_per_mark: int = 1,
        least_samples: int = LEAST_SAMPLES,
        patience: float = PATIENCE,
        most_samples: int = MOST_SAMPLES,
        pool: PoolWaits | None = None,
        rare_patience: float = 0.0,
        expects_rare_work: bool = False,
    ) -> None:
        self._clock = clock
        self._budget_ns = budget_s * NS_PER_S
        self._calls_per_mark = calls_per_mark
        self._least_samples = least_samples
        self._most_samples = most_samples
        self._longest_ns = patience * self._budget_ns
        self._optimizers: list[int] = []
        self._calls: Counter[int] = Counter()
        self._marks_ns: list[int] = []
        self._pool = pool
        # At each mark what was waited, by which reading.
        self._waited_ns: list[tuple[int, int]] = []
        self._next_look_ns = 0
        self._is_wanting = False
        # Whether other work disturbed the samples so far, and a quiet moment is awaited.
        self.is_waiting = False
        self._waits_for_quiet = True
        self._rare_ns = rare_patience * self._budget_ns
        self.expects_rare_work = expects_rare_work
        self._is_first_known = False
        # Since when the budget is being spent; the first mark until it is known to be late.
        self._begun_ns: int | None = None

    @property
    def first_end_ns(self) -> int:
        """Return when the first step ended, by the clock; 0 before it has."""
        ends = find_round_ends(self._optimizers)
        return self._marks_ns[ends[0]] if ends else 0

    @property
    def num_calls(self) -> int:
        """Return the optimizer calls so far."""
        return len(self._optimizers)

    def mark(self, optimizer: int) -> bool:
        """Note an optimizer call; return whether there are samples enough.

        Args:
            optimizer: Its number.
        """
        self._optimizers.append(optimizer)
        # Counted for each optimizer: of a GAN's calls in turn, every tenth is never the
        # generator's, with which a step ends.
        is_reading = self._calls[optimizer] % self._calls_per_mark == 0
        self._calls[optimizer] += 1
        if is_reading:
            self._clock.synchronize()
        self._marks_ns.append(self._clock.now_ns() if is_reading else -1)
        if self._pool is not None:
            self._waited_ns.append((self._pool.waited_ns(), self._pool.num_readings))
        return is_reading and self._is_enough()

    @property
    def num_rounds(self) -> int:
        """Return the steps so far, in each of which every optimizer has its turn."""
        return len(find_round_ends(self._optimizers))

    def samples_ns(self) -> tuple[int, ...]:
        """Return the duration of every step between two ends of a step.

        The first step has no beginning: what a script does before its first update is no step.
        """
        return tuple(
            (self._marks_ns[later.call] - self._marks_ns[earlier.call])
            // (later.number - earlier.number)
            for earlier, later in itertools.pairwise(self._read_ends())
        )

    def end_calls(self) -> tuple[int, ...]:
        """Return the numbers of the optimizer calls, from 0, between which the samples lie."""
        return tuple(end.call for end in self._read_ends())

    def measurement(self) -> Measurement | None:
        """Return the samples so far, or None when there is no complete step."""
        samples = self.samples_ns()
        if not samples:
            return None
        return Measurement(
            samples_ns=samples,
            num_warmup=min(find_warmup(samples), len(samples) - 1),
            waited_ns=self._sample_waits_ns(),
        )

    def _wants_more(self, elapsed_ns: int) -> bool:
        """Return whether to go on, since the samples so far do not say what they could.

        Other work disturbed them, they differ much, or the script does something else between a
        few of them.
        """
        if elapsed_ns >= max(self._longest_ns, self._rare_ns):
            self.is_waiting = False
            return False
        if self._marks_ns[-1] >= self._next_look_ns:
            # To look takes time, which the next sample will contain.
            self._next_look_ns = self._marks_ns[-1] + _LOOK_EVERY_NS
            found = self.measurement()
            self.is_waiting = (
                self._waits_for_quiet
                and found is not None
                and found.is_disturbed
                and elapsed_ns < self._longest_ns
            )
            is_missing = self.expects_rare_work and not (
                found and found.other and found.other.value_ns > _RARE_SHARE * found.median_ns
            )
            says_little = found is not None and (found.has_rare_work or found.is_uncertain)
            wants_more = is_missing or says_little
            self._is_wanting = self.is_waiting or (wants_more and elapsed_ns < self._rare_ns)
        return self._is_wanting

    def stop_waiting(self) -> None:
        """Wait for no quiet moment: what waits may do so for the script itself."""
        self._waits_for_quiet = False

    def _sample_waits_ns(self) -> tuple[int, ...]:
        """Return what was waited in each sample: its part of what was between two readings."""
        if self._pool is None:
            return ()
        first_of = {}  # the first mark that knows a reading
        for call, (_, reading) in enumerate(self._waited_ns):
            first_of.setdefault(reading, call)
        fresh = [*first_of.values(), len(self._waited_ns) - 1]
        found: list[int] = []
        for earlier, later in itertools.pairwise(self._read_ends()):
            begin = fresh[bisect.bisect_right(fresh, earlier.call, hi=len(fresh) - 1) - 1]
            end = fresh[bisect.bisect_left(fresh, later.call)]
            waited_ns = self._waited_ns[end][0] - self._waited_ns[begin][0]
            span_ns = self._marks_ns[end] - self._marks_ns[begin]
            sample_ns = self._marks_ns[later.call] - self._marks_ns[earlier.call]
            share = sample_ns / span_ns if span_ns > 0 else 1.0
            found.append(round(waited_ns * share) // (later.number - earlier.number))
        return tuple(found)

    def _read_ends(self) -> list[_StepEnd]:
        """Return the ends of steps at which the clock was read."""
        ends = enumerate(find_round_ends(self._optimizers))
        return [_StepEnd(number, call) for number, call in ends if self._marks_ns[call] >= 0]

    def _is_enough(self) -> bool:
        if self._begun_ns is None:
            self._begun_ns = self._marks_ns[0]
        elapsed_ns = self._marks_ns[-1] - self._begun_ns
        if elapsed_ns < self._budget_ns and len(self._marks_ns) < self._most_samples:
            return False
        samples_ns = self.samples_ns()
        if not self._is_first_known and samples_ns:
            self._is_first_known = True
            if samples_ns[0] > self._budget_ns:
                self._begun_ns = self._marks_ns[-1]
                return False
        if self._wants_more(elapsed_ns):
            return False
        are_slow = bool(samples_ns) and samples_ns[-1] > self._budget_ns
        if are_slow or elapsed_ns >= self._longest_ns:
            return len(samples_ns) >= 2
        return len(samples_ns) >= self._least_samples


class HostClock:
    """The time of the thread that asks, for steps on the CPU: there is no device to wait for.

    It stands still while other work keeps the thread from running, unless ``is_wall``.
    """

    is_wall = False

    def now_ns(self) -> int:
        """Return the time in nanoseconds since an arbitrary moment."""
        return perf_counter_ns() if self.is_wall else own_time_ns()

    def synchronize(self) -> None:
        """Return at once: a CPU operator is done when its call returns."""


class GpuClock:
    """The host's monotonic clock, for steps on a GPU.

    Args:
        kind: torch's type of it: ``cuda``, ``xpu`` or ``mps``.
    """

    def __init__(self, kind: str = "cuda") -> None:
        self._backend = torch.get_device_module(kind)
        # That of MPS, which has one device, and torch without CUDA have no such question.
        self._is_used: Callable[[int], bool] | None = getattr(
            torch._C, f"_{kind}_hasPrimaryContext", None
        )

    def now_ns(self) -> int:
        """Return the time in nanoseconds since an arbitrary moment."""
        return perf_counter_ns()

    def synchronize(self) -> None:
        """Wait until every device that the process uses has done all that was issued.

        A script that says ``cuda:1`` leaves another one the current device.
        """
        self._backend.synchronize()
        is_used = self._is_used
        if is_used is None or self._backend.device_count() < 2:
            return
        current = self._backend.current_device()
        for index in range(self._backend.device_count()):
            if index != current and is_used(index):
                self._backend.synchronize(index)


def measure_step(
    step: Callable[[], object], *, clock: Clock | None = None, budget_s: float = 1.0
) -> Measurement:
    """Call ``step`` until its time is known, and return the samples.

    Args:
        step: One training step; it is called some 5 to 2,000 times.
        clock: Reads the time and waits for the device; the host's own by default, which is right
            for the CPU. Pass `GpuClock` for steps on a GPU.
        budget_s: Seconds of steps that are enough when they are short.
    """
    timer = StepTimer(clock or HostClock(), budget_s)
    is_enough = timer.mark(-1)
    while not is_enough:
        step()
        is_enough = timer.mark(-1)
    measurement = timer.measurement()
    assert measurement is not None, "enough means at least two samples"
    return measurement

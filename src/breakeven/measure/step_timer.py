"""The timer and the clocks that measure a script's steps while it runs."""

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
# Check at this interval whether other work disturbed the samples.
_LOOK_EVERY_NS = 50_000_000
# Below this share of a step, time between steps is a delay of one step, not recurring work.
_RARE_SHARE = 0.1


class _StepEnd(NamedTuple):
    number: int
    call: int


class StepTimer:
    """Reads the clock at each optimizer call and decides when the samples suffice.

    Args:
        clock: Host clock that can wait for the device.
        budget_s: Seconds of steps to take if they are short. Slow steps get more time, until two
            are complete. A first step longer than the budget does not count: it compiles or loads
            data, unlike later steps.
        calls_per_mark: Calls of one optimizer per reading of the clock. On a GPU, a wait for the
            device at each step would hide the overlap of host and device. There a sample spans
            several steps.
        least_samples: Samples to wait for.
        patience: Multiple of the budget after which two samples suffice.
        most_samples: Limit on samples of short steps.
        pool: Measures how long the threads that compute the steps could not run. If that is long,
            the timer waits for a quiet moment until patience ends.
        rare_patience: Multiple of the budget to wait for more samples. The timer waits if the
            samples differ much, or if work between some steps recurs at an unknown rate.
        expects_rare_work: Whether such work ran before the first step, and will recur.
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
        # Waiting time at each mark, and the number of its reading.
        self._waited_ns: list[tuple[int, int]] = []
        self._next_look_ns = 0
        self._is_wanting = False
        # Whether other work disturbed the samples so far, and the timer waits for a quiet moment.
        self.is_waiting = False
        self._waits_for_quiet = True
        self._rare_ns = rare_patience * self._budget_ns
        self.expects_rare_work = expects_rare_work
        self._is_first_known = False
        # Start of the budget: the first mark, or a later one if the first step was too long.
        self._begun_ns: int | None = None

    @property
    def first_end_ns(self) -> int:
        """Return the end of the first step by the clock; 0 before it."""
        ends = find_round_ends(self._optimizers)
        return self._marks_ns[ends[0]] if ends else 0

    @property
    def num_calls(self) -> int:
        """Return the number of optimizer calls so far."""
        return len(self._optimizers)

    def mark(self, optimizer: int) -> bool:
        """Note an optimizer call; return whether the samples suffice.

        Args:
            optimizer: Number of the optimizer.
        """
        self._optimizers.append(optimizer)
        # Count per optimizer: if a GAN's optimizers alternate, a global tenth call would never be
        # the generator's, which ends a step.
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
        """Return the number of complete steps, in each of which every optimizer has its turn."""
        return len(find_round_ends(self._optimizers))

    def samples_ns(self) -> tuple[int, ...]:
        """Return the duration of every step between two ends of steps.

        The script's work before its first update is no step, so the first step has no sample.
        """
        return tuple(
            (self._marks_ns[later.call] - self._marks_ns[earlier.call])
            // (later.number - earlier.number)
            for earlier, later in itertools.pairwise(self._read_ends())
        )

    def end_calls(self) -> tuple[int, ...]:
        """Return the optimizer calls that bound the samples, as numbers from 0."""
        return tuple(end.call for end in self._read_ends())

    def measurement(self) -> Measurement | None:
        """Return the samples so far, or None without a complete step."""
        samples = self.samples_ns()
        if not samples:
            return None
        return Measurement(
            samples_ns=samples,
            num_warmup=min(find_warmup(samples), len(samples) - 1),
            waited_ns=self._sample_waits_ns(),
        )

    def _wants_more(self, elapsed_ns: int) -> bool:
        """Return whether the samples so far need more time.

        They do if other work disturbed them or if they differ much. They also do if the script does
        other work between a few of them.
        """
        if elapsed_ns >= max(self._longest_ns, self._rare_ns):
            self.is_waiting = False
            return False
        if self._marks_ns[-1] >= self._next_look_ns:
            # Checking takes time, which the next sample contains.
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
        """Stop waiting for a quiet moment: the load may come from the script itself."""
        self._waits_for_quiet = False

    def _sample_waits_ns(self) -> tuple[int, ...]:
        """Return the waiting time in each sample: its share of that between two readings."""
        if self._pool is None:
            return ()
        first_of = {}  # the first mark with each reading
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
        """Return the step ends with a reading of the clock."""
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
    """The calling thread's time, for steps on the CPU, which has no device to wait for.

    It stops while other work keeps the thread from running, unless ``is_wall`` is set.
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
        kind: torch's type of the GPU: ``cuda``, ``xpu`` or ``mps``.
    """

    def __init__(self, kind: str = "cuda") -> None:
        self._backend = torch.get_device_module(kind)
        # MPS, which has one device, and torch without CUDA lack this function.
        self._is_used: Callable[[int], bool] | None = getattr(
            torch._C, f"_{kind}_hasPrimaryContext", None
        )

    def now_ns(self) -> int:
        """Return the time in nanoseconds since an arbitrary moment."""
        return perf_counter_ns()

    def synchronize(self) -> None:
        """Wait until every device that the process uses has completed all issued work.

        A script that uses ``cuda:1`` may leave another device current.
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
    """Call ``step`` until the samples suffice, and return them.

    Args:
        step: One training step; called some 5 to 2,000 times.
        clock: Reads the time and waits for the device; by default the host's own, for steps on the
            CPU. Pass `GpuClock` for steps on a GPU.
        budget_s: Seconds of steps to take if they are short.
    """
    timer = StepTimer(clock or HostClock(), budget_s)
    is_enough = timer.mark(-1)
    while not is_enough:
        step()
        is_enough = timer.mark(-1)
    measurement = timer.measurement()
    assert measurement is not None, "enough means at least two samples"
    return measurement

"""Step times: samples, their statistics, estimates with intervals, and the ends of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from itertools import groupby
from math import exp, lgamma, log
from typing import Protocol

import msgspec
import numpy as np

CONFIDENCE = 0.90
# Code of the caveat on a measurement taken while other processes used the machine.
BUSY_MACHINE = "busy-machine"
# Code of the caveat on a measurement from which the disturbed samples were left out.
BUSY_BESIDE = "busy-beside"
# Code of the caveat on a measurement in a 16-bit format that the CPU only emulates.
EMULATED_ON_CPU = "emulated-on-cpu"
# Fraction of all processors used by other processes; above it a measurement is unreliable.
BUSY_FRACTION = 0.15

# Least widening of the range of a few samples: one machine's spread from run to run.
_LEAST_FACTOR = 1.1
# Power of the ratio of two samples by which to widen their range on either side. The interval then
# holds the median of a lognormal time in 90 % of cases. For three and four samples the ratio itself
# suffices.
# Source: Student's t with one degree of freedom, (6.31 - 1) / 2, on logarithms of the times.
_POWER_OF_TWO_SAMPLES = 2.66
# A sample is undisturbed if it waited for at most this fraction of its time; with at least
# `_LEAST_CALM` such samples, the others are left out.
_CALM_FRACTION = 0.02
_LEAST_CALM = 5
# Threads wait in parallel: at least this fraction of a disturbed sample is its own time.
_LEAST_OWN_FRACTION = 0.02
# A sample longer than the median by `_LONGER` contains more than a step. Wait for `_LEAST_LONGER`
# samples above `_MUCH_LONGER` if these take more than `_MUCH_OF_TIME` of the whole.
_LONGER = 1.5
_MUCH_LONGER = 3.0
_LEAST_LONGER = 3
_MUCH_OF_TIME = 0.1
# If the median's interval is wider than this factor for enough samples, steps are of two or more
# kinds: the median is then one kind by chance.
_WIDE = 1.5
_LEAST_MIXED = 20
# Standard deviations of a normal distribution that hold 90 % of it.
NORMAL_90 = 1.645
# One sample does not show its spread. A first step is often twice as long as the later ones.
_FACTOR_OF_ONE_SAMPLE = 2.0


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Raw samples of a step's time on a device that is present.

    Args:
        samples_ns: Duration of every step, in order, warm-up included.
        num_warmup: Leading samples that belong to the warm-up.
        waited_ns: Time in each sample for which other work kept one of its threads from running;
            empty if unknown.
        is_bound: Whether other work delayed the steps by an unknown time: samples are upper
            bounds.
    """

    samples_ns: tuple[int, ...]
    num_warmup: int = 0
    waited_ns: tuple[int, ...] = ()
    is_bound: bool = False

    @property
    def steady_ns(self) -> tuple[int, ...]:
        """Return the samples that count; none is below the clock's resolution of 1 ns.

        They are the undisturbed samples after the warm-up, or all samples after the warm-up if
        too few are undisturbed.
        """
        return tuple(max(1, self.samples_ns[index]) for index in self.steady)

    @property
    def steady(self) -> tuple[int, ...]:
        """Return the indices of the samples that count, from 0."""
        calm = self._calm()
        if len(calm) < self._least_calm:
            return tuple(range(self.num_warmup, len(self.samples_ns)))
        return calm

    @property
    def is_disturbed(self) -> bool:
        """Return whether too many samples were disturbed, so that they are only a bound."""
        return self.is_bound or len(self._calm()) < self._least_calm

    @property
    def other(self) -> Estimate | None:
        """Return the time per step of work between some of the steps.

        Rollouts, evaluations, checkpoints: such work makes a few samples much longer.
        None if it takes much of the time in too few samples to show its frequency, or if the
        samples are disturbed; 0 if there is no such work.
        """
        own_ns = self._own_ns()
        much_longer_ns = own_ns[own_ns > _MUCH_LONGER * self.median_ns]
        if self.is_disturbed or self.has_rare_work:
            return None
        more_ns = own_ns[own_ns > _LONGER * self.median_ns] - self.median_ns
        if not len(much_longer_ns):
            more_ns = more_ns[:0]
        value_ns = float(more_ns.sum()) / len(own_ns)
        off = _count_error(much_longer_ns)
        return Estimate(
            value_ns=value_ns,
            low_ns=value_ns / (1 + off),
            high_ns=value_ns * (1 + off),
            source=Source.MEASURED,
        )

    @property
    def longer(self) -> tuple[int, ...]:
        """Return the indices of the samples that contain more than a step, from 0."""
        (found,) = np.nonzero(self._own_ns() > _LONGER * self.median_ns)
        return tuple(self.num_warmup + int(number) for number in found)

    @property
    def is_uncertain(self) -> bool:
        """Return whether the interval is so wide that more samples would narrow it."""
        return self.estimate.high_ns > _WIDE * self.estimate.low_ns

    @property
    def has_rare_work(self) -> bool:
        """Return whether work between some of the steps is too rare to show its frequency."""
        own_ns = self._own_ns()
        longer_ns = own_ns[own_ns > _MUCH_LONGER * self.median_ns]
        is_much = longer_ns.sum() > _MUCH_OF_TIME * own_ns.sum()
        return bool(is_much) and 0 < len(longer_ns) < _LEAST_LONGER

    def _own_ns(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        own_ns = np.array(self._warm_ns, dtype=np.float64)
        return own_ns - np.array(self.waited_ns[self.num_warmup :]) if self.waited_ns else own_ns

    @property
    def _warm_ns(self) -> tuple[int, ...]:
        return tuple(max(1, sample) for sample in self.samples_ns[self.num_warmup :])

    @property
    def _least_calm(self) -> int:
        return min(_LEAST_CALM, len(self.samples_ns) - self.num_warmup)

    def _calm(self) -> tuple[int, ...]:
        waited_ns = self.waited_ns or (0,) * len(self.samples_ns)
        return tuple(
            index
            for index in range(self.num_warmup, len(self.samples_ns))
            if waited_ns[index] <= _CALM_FRACTION * max(1, self.samples_ns[index])
        )

    @property
    def median_ns(self) -> float:
        """Return the median of the samples after the warm-up."""
        return float(np.median(self.steady_ns))

    @property
    def mean_ns(self) -> float:
        """Return the mean of the samples that count, without those that hold more than a step.

        If steps differ, as with batches of varying length, it is the time per step of many steps.
        """
        return float(self._single_ns().mean())

    def _single_ns(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        steady_ns = np.array(self.steady_ns, dtype=np.float64)
        return steady_ns[steady_ns <= _MUCH_LONGER * self.median_ns]

    @property
    def own_ns(self) -> float:
        """Return the median, less the waiting of disturbed steps if it is known."""
        if self.is_bound or not self.is_disturbed:
            return self.median_ns
        least_ns = _LEAST_OWN_FRACTION * np.array(self._warm_ns, dtype=np.float64)
        return float(np.median(np.maximum(self._own_ns(), least_ns)))

    @property
    def estimate(self) -> Estimate:
        """Return the median with its confidence interval, without assuming a distribution.

        With too few samples for the confidence, the interval is their whole range. Both ends are
        widened by the ratio of the ends, at least 10 %: by more for two samples, and by a factor
        of 2 for one. This errs on the wide side. If other work disturbed the samples, the interval
        begins at the shortest sample less its waiting.

        If steps are of two kinds, return their mean: it gives the time of many steps, while the
        median is one kind or the other.
        """
        ordered = sorted(self.steady_ns)
        rank = _interval_rank(len(ordered), CONFIDENCE)
        if rank is None:
            least = _FACTOR_OF_ONE_SAMPLE if len(ordered) == 1 else _LEAST_FACTOR
            power = _POWER_OF_TWO_SAMPLES if len(ordered) == 2 else 1.0
            factor = max((ordered[-1] / ordered[0]) ** power, least)
            low, high = ordered[0] / factor, ordered[-1] * factor
        else:
            low, high = ordered[rank], ordered[-1 - rank]
            if high > _WIDE * low and len(ordered) >= _LEAST_MIXED and not self.is_disturbed:
                return self._mean_estimate()
        if self.is_disturbed:
            low, high = min(low, self._least_own_ns()), max(high, ordered[-1])
        return Estimate(value_ns=self.median_ns, low_ns=low, high_ns=high, source=Source.MEASURED)

    def _mean_estimate(self) -> Estimate:
        single_ns = self._single_ns()
        mean_ns = float(single_ns.mean())
        # Kinds come in runs; one run is as informative as one sample.
        num_runs = 1 + int(np.count_nonzero(np.diff(single_ns > mean_ns)))
        off_ns = NORMAL_90 * float(single_ns.std()) / num_runs**0.5
        low_ns = max(mean_ns - off_ns, float(single_ns.min()))
        return Estimate(
            value_ns=mean_ns, low_ns=low_ns, high_ns=mean_ns + off_ns, source=Source.MEASURED
        )

    def _least_own_ns(self) -> float:
        """Return the shortest time of a step without waiting."""
        if self.is_bound:
            return _LEAST_OWN_FRACTION * min(self._warm_ns)
        waited_ns = self.waited_ns[self.num_warmup :]
        return min(
            max(sample - waited, _LEAST_OWN_FRACTION * sample)
            for sample, waited in zip(self._warm_ns, waited_ns, strict=True)
        )


def _count_error(durations_ns: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the relative error of the sum of occasional work, in 90 % of cases.

    The count may be off by one, and the durations vary.
    """
    count = len(durations_ns)
    if not count:
        return 0.0
    spread = float(durations_ns.std() / durations_ns.mean())
    return 1 / count + NORMAL_90 * spread / count**0.5


@cache
def _interval_rank(count: int, confidence: float) -> int | None:
    """Return r such that the r-th smallest and r-th largest of ``count`` enclose the median.

    Source: order-statistic interval, the binomial distribution with p = 1/2; see B. C. Arnold,
    N. Balakrishnan, H. N. Nagaraja, "A First Course in Order Statistics", 2008, section 7.1.
    """
    outside, rank = 0.0, None
    for lowest in range(count // 2):
        # Use logarithms: for thousands of samples the numbers have thousands of digits.
        ways = lgamma(count + 1) - lgamma(lowest + 1) - lgamma(count - lowest + 1)
        outside += 2 * exp(ways - count * log(2))
        if 1 - outside < confidence:
            break
        rank = lowest
    return rank


class Source(StrEnum):
    """Origin of a figure. Never call a prediction a measurement."""

    MEASURED = "measured"
    PREDICTED = "predicted"


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A duration with its 90 % interval, in nanoseconds."""

    value_ns: float
    low_ns: float
    high_ns: float
    source: Source

    @classmethod
    def predicted(cls, value_ns: float, low_ns: float, high_ns: float) -> Estimate:
        """Return a prediction, its interval extended to hold the value if it does not."""
        return cls(
            value_ns=value_ns,
            low_ns=min(low_ns, value_ns),
            high_ns=max(high_ns, value_ns),
            source=Source.PREDICTED,
        )


class StepPhases(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a step, each the median of all steps, in nanoseconds.

    Args:
        backward_ns: Backward passes.
        optimizer_ns: From the end of each last backward pass to the end of the update; 0 if the
            script updates its weights itself.
    """

    backward_ns: float
    optimizer_ns: float


class CounterPower(msgspec.Struct, frozen=True, kw_only=True):
    """Mean power of a part of this machine during timed steps, by an energy counter.

    The part's idle power and the work of other processes are included.

    Args:
        counter: ``RAPL package-0`` for a CPU, ``NVML`` for the board of the GPU.
        watts: Mean power.
        low_watts: Low end: the counter may be one update behind.
        high_watts: High end.
    """

    counter: str
    watts: float
    low_watts: float
    high_watts: float


class MachinePower(msgspec.Struct, frozen=True, kw_only=True):
    """The power that the energy counters of this machine show.

    Args:
        parts: Power by counter.
        unread: For each counter that shows none, why, and what to do.
    """

    parts: tuple[CounterPower, ...] = ()
    unread: tuple[str, ...] = ()


class CpuSetting(StrEnum):
    """The setting that a trial changes."""

    THREADS = "threads"
    FLUSH_DENORMAL = "flush-denormal"


class CpuTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The step under another CPU setting, measured alongside the unchanged step.

    Args:
        setting: The change, as a document writes it: ``threads=1``, ``flush-denormal``.
        estimate: Time of a step under it.
    """

    setting: str
    estimate: Estimate

    def changes(self, setting: CpuSetting) -> bool:
        """Return whether the trial changes this setting."""
        return self.setting.partition("=")[0] == setting

    @property
    def num_threads(self) -> int:
        """Return the number of threads tried; 0 if the trial changes another setting."""
        number = self.setting.partition("=")[2]
        return int(number) if self.changes(CpuSetting.THREADS) and number.isdigit() else 0


class CpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The step on this machine's CPU.

    Args:
        name: Processor.
        estimate: Time of a step as the script runs it.
        num_threads: torch's intra-op threads in that run.
        num_cores: Processors that the process may use.
        trials: The same step under other settings.
        has_bf16: Whether the processor multiplies bfloat16 in hardware (AMX, AVX512-BF16).
        dispatch_ns: Python, dispatcher and autograd of one operator, measured on this machine.
        load_fraction: Fraction of its processors that other processes used during the measurement.
    """

    name: str
    estimate: Estimate
    num_threads: int
    num_cores: int
    trials: tuple[CpuTrial, ...] = ()
    has_bf16: bool = False
    dispatch_ns: float = 0.0
    load_fraction: float = 0.0


class Clock(Protocol):
    """A monotonic clock of the host that can also wait for the device."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since an arbitrary moment."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has finished all issued work."""
        ...


def find_warmup(samples_ns: Sequence[float]) -> int:
    """Return the number of leading samples that belong to the warm-up.

    The marginal standard error rule: drop the number of samples that minimizes the standard error
    of the mean of the rest. First clip the second half at three times its median, so that a late
    outlier does not look like the end of a warm-up. Drop at most half.

    Args:
        samples_ns: Durations in order of time.

    Source: K. P. White, "An effective truncation heuristic for bias reduction in simulation
    output", Simulation 69(6), 1997 (MSER).
    """
    count = len(samples_ns)
    if count < 2:
        return 0
    if count < 5:
        # Too few for a variance; the first step allocates and initialises.
        return 1
    values = np.array(samples_ns, dtype=float)  # a copy: it is clipped below
    ceiling = 3.0 * float(np.median(values[count // 2 :]))
    # Do not clip the first half: a slow start is the signal.
    values[count // 2 :] = np.minimum(values[count // 2 :], ceiling)
    # Suffix sums for each number of dropped samples; of distances, to avoid cancellation.
    distances = values - np.median(values)
    num_left = np.arange(count, 0, -1)
    means = np.cumsum(distances[::-1])[::-1] / num_left
    squares = np.cumsum(distances[::-1] ** 2)[::-1] / num_left
    errors = np.maximum(squares - means**2, 0.0) / num_left
    return max(1, int(np.argmin(errors[: count // 2 + 1])))


# No training alternates between more optimizers than this.
_MOST_OPTIMIZERS = 32
# If each of three or more optimizers makes at least this many updates in a row, they train one
# after another: clients, folds, members of an ensemble. In a GAN's round, one updates once.
_LEAST_TURN = 4


def find_round_ends(calls: Sequence[int]) -> tuple[int, ...]:
    """Return the positions in ``calls`` at which a training step ends.

    With one optimizer every call ends a step. With several (a GAN), a step is one round of all
    of them. It ends with the optimizer that is called least often: five critic updates and one
    generator update make one round. Among equals, it ends with the last one of a round.
    Networks that are trained one after another have no rounds: each update is a step.

    Args:
        calls: For every call of ``optimizer.step()``, in order, the number of its optimizer.
    """
    counts = Counter(calls)
    if not counts:
        return ()
    if len(counts) > _MOST_OPTIMIZERS and max(counts.values()) == 1:
        # A script that makes a new optimizer for every step has no rounds.
        return tuple(range(len(calls)))
    if len(counts) > 2:
        turns = [sum(1 for _ in turn) for _, turn in groupby(calls)]
        if min(turns[:-1]) >= _LEAST_TURN:
            return tuple(range(len(calls)))
    fewest = min(counts.values())
    # A round may be cut off at either end: ignore a difference of one call.
    are_equal = max(counts.values()) <= fewest + 1
    rare = [number for number, count in counts.items() if are_equal or count == fewest]
    last = max(rare, key=calls.index)
    return tuple(position for position, number in enumerate(calls) if number == last)

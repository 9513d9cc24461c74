"""Measured step times and what they say."""

from __future__ import annotations

from functools import cache
from math import exp, lgamma, log

import msgspec
import numpy as np

from breakeven.timing._estimate import Estimate, Source

CONFIDENCE = 0.90
# Code of the caveat on a measurement taken while other processes used the machine.
BUSY_MACHINE = "busy-machine"
# Of all processors, used by other processes: above this a measurement says little.
BUSY_FRACTION = 0.15

# What a few samples are widened by at least: the spread of one machine from run to run.
_LEAST_FACTOR = 1.1
# Of two samples the range says little: it must be widened on either side by this power of the
# ratio of its ends to hold the median of a lognormal time in 90 % of cases. Three and four need
# no more than the ratio itself.
# Source: Student's t with one degree of freedom, (6.31 - 1) / 2, on logarithms of the times.
_POWER_OF_TWO_SAMPLES = 2.66
# One sample says nothing of its spread. A first step is often twice as long as the later ones.
_FACTOR_OF_ONE_SAMPLE = 2.0


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Raw samples of a step's time on a device that is present.

    Args:
        samples_ns: Duration of every step, in order, warm-up included.
        num_warmup: Leading samples that belong to the warm-up.
    """

    samples_ns: tuple[int, ...]
    num_warmup: int = 0

    @property
    def steady_ns(self) -> tuple[int, ...]:
        """Return the samples after the warm-up; none is below the clock's resolution of 1 ns."""
        return tuple(max(1, sample) for sample in self.samples_ns[self.num_warmup :])

    @property
    def median_ns(self) -> float:
        """Return the median of the samples after the warm-up."""
        return float(np.median(self.steady_ns))

    @property
    def estimate(self) -> Estimate:
        """Return the median with its confidence interval, free of assumptions on the shape.

        With fewer samples than the confidence needs, the interval is their whole range, widened
        at both ends by the ratio of its ends (by more where there are only two, by at least 10 %,
        and by a factor of 2 where there is but one): said wide rather than too narrow.
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
        return Estimate(value_ns=self.median_ns, low_ns=low, high_ns=high, source=Source.MEASURED)


@cache
def _interval_rank(count: int, confidence: float) -> int | None:
    """Return r such that the r-th smallest and r-th largest of ``count`` enclose the median.

    Source: order-statistic interval, the binomial distribution with p = 1/2; see B. C. Arnold,
    N. Balakrishnan, H. N. Nagaraja, "A First Course in Order Statistics", 2008, section 7.1.
    """
    outside, rank = 0.0, None
    for lowest in range(count // 2):
        # By logarithms: of thousands of samples the numbers themselves have thousands of digits.
        ways = lgamma(count + 1) - lgamma(lowest + 1) - lgamma(count - lowest + 1)
        outside += 2 * exp(ways - count * log(2))
        if 1 - outside < confidence:
            break
        rank = lowest
    return rank

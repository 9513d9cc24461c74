from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from breakeven.timing import CONFIDENCE, Measurement, Source


def coverage(count: int, runs: int = 2_000) -> float:
    """Return how often the interval of ``count`` lognormal samples holds their true median."""
    random = np.random.default_rng(count)
    samples = (1e6 * random.lognormal(0.0, 0.3, (runs, count))).astype(int)
    held = 0
    for row in samples:
        estimate = Measurement(samples_ns=tuple(row.tolist())).estimate
        held += estimate.low_ns <= 1e6 <= estimate.high_ns
    return held / runs


# 1 - 2 P(Binomial(n, 1/2) <= r) for the largest r that leaves at least 90 %: the interval can only
# move from one sample to the next, so few samples hold the median more often than 90 %.
@pytest.mark.parametrize(
    ("count", "expected"), [(5, 1 - 2 / 32), (10, 1 - 22 / 1024), (30, 0.9013), (200, 0.9232)]
)
def test_interval_holds_the_median_as_often_as_it_says(count: int, expected: float) -> None:
    # Three standard errors of 2,000 runs are 2 %.
    assert coverage(count) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_too_few_samples_hold_the_median_at_least_as_often(count: int) -> None:
    assert coverage(count) >= CONFIDENCE


def test_interval_of_five_is_their_range_and_of_ten_lacks_one_at_each_end() -> None:
    five = Measurement(samples_ns=(50, 10, 30, 20, 40)).estimate
    assert (five.low_ns, five.value_ns, five.high_ns) == (10, 30, 50)
    ten = Measurement(samples_ns=(100, 10, 90, 20, 80, 30, 70, 40, 60, 50)).estimate
    assert (ten.low_ns, ten.value_ns, ten.high_ns) == (20, 55, 90)
    assert ten.source is Source.MEASURED


def test_interval_of_many_is_that_of_the_normal_distribution() -> None:
    count = 30_000
    estimate = Measurement(samples_ns=tuple(range(1, count + 1))).estimate
    # Half the samples, less 1.645 standard deviations of how many are below the median.
    reach = 1.645 * math.sqrt(count) / 2
    assert estimate.low_ns == pytest.approx(count / 2 - reach, abs=2)
    assert estimate.high_ns == pytest.approx(count / 2 + reach, abs=2)


def test_interval_of_too_few_is_wider_than_their_range() -> None:
    # 200 / 100 doubles both ends.
    three = Measurement(samples_ns=(100, 150, 200)).estimate
    assert (three.low_ns, three.value_ns, three.high_ns) == (50, 150, 400)
    # Student's t with one degree of freedom, by logarithms: mean ± 6.314 × deviation / √2.
    two = Measurement(samples_ns=(100, 110)).estimate
    center, deviation = math.log(100 * 110) / 2, math.log(110 / 100) / math.sqrt(2)
    reach = 6.314 * deviation / math.sqrt(2)
    assert two.value_ns == 105
    assert math.log(two.low_ns) == pytest.approx(center - reach, rel=1e-3)
    assert math.log(two.high_ns) == pytest.approx(center + reach, rel=1e-3)
    alike = Measurement(samples_ns=(1_000, 1_000, 1_000)).estimate
    assert alike.low_ns == pytest.approx(1_000 / 1.1)
    assert alike.high_ns == pytest.approx(1_100)
    # One sample has no spread to tell.
    single = Measurement(samples_ns=(1_000,)).estimate
    assert (single.low_ns, single.value_ns, single.high_ns) == (500, 1_000, 2_000)


@pytest.mark.parametrize("samples", [(0,), (0, 5), (0, 0, 0), (0,) * 30, (0, 0, 0, 0, 0, 7)])
def test_step_below_the_resolution_of_the_clock_still_takes_time(samples: tuple[int, ...]) -> None:
    estimate = Measurement(samples_ns=samples).estimate
    assert 0 < estimate.low_ns <= estimate.value_ns <= estimate.high_ns


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 30])
def test_value_lies_within_its_interval(count: int) -> None:
    for seed in range(50):
        random = np.random.default_rng(seed)
        samples = (1e4 * random.lognormal(0.0, 1.5, count)).astype(int).tolist()
        estimate = Measurement(samples_ns=tuple(samples)).estimate
        assert 0 < estimate.low_ns <= estimate.value_ns <= estimate.high_ns


def test_steps_of_two_kinds_take_their_mean_and_are_not_disturbed() -> None:
    # Twenty updates of a small client, and twenty of one with more data.
    kinds = Measurement(samples_ns=((1_000,) * 20 + (2_500,) * 20) * 10)
    estimate = kinds.estimate
    assert estimate.value_ns == pytest.approx(1_750)
    assert estimate.high_ns < 1.5 * estimate.low_ns
    assert not kinds.is_disturbed
    # However many of the last cycle were seen, the mean stays; the median is one or the other.
    cut = Measurement(samples_ns=kinds.samples_ns[:-25]).estimate
    assert cut.value_ns == pytest.approx(1_750, rel=0.05)
    # A few seldom ones do not make a second kind, nor do steps that differ a little.
    assert Measurement(samples_ns=((1_000,) * 9 + (2_500,)) * 10).estimate.value_ns == 1_000
    assert Measurement(samples_ns=(1_000, 1_200) * 20).estimate.value_ns == 1_100
    # What other work disturbed is no kind of step.
    waited = Measurement(samples_ns=kinds.samples_ns, waited_ns=((500,) * 20 + (2_000,) * 20) * 10)
    assert waited.estimate.low_ns < 1_000


@pytest.mark.parametrize("length", [1, 5, 20])
def test_interval_of_steps_of_two_kinds_holds_their_mean(length: int) -> None:
    random = np.random.default_rng(length)
    held = 0
    for _ in range(200):
        means = np.repeat(np.tile([1e6, 2e6], 200 // length), length)[random.integers(length) :]
        row = (means * random.lognormal(0.0, 0.1, len(means))).astype(int)
        estimate = Measurement(samples_ns=tuple(row.tolist())).estimate
        held += estimate.low_ns <= 1.5e6 * math.exp(0.005) <= estimate.high_ns
    assert held / 200 >= CONFIDENCE - 0.05


def test_warmup_does_not_count() -> None:
    measurement = Measurement(samples_ns=(9_000, 8_000, 10, 20, 30, 40, 50), num_warmup=2)
    assert measurement.steady_ns == (10, 20, 30, 40, 50)
    assert measurement.median_ns == 30
    assert measurement.estimate.high_ns == 50


def test_indices_of_the_samples_that_count() -> None:
    waited_ns = (0, 0, 900, 0, 0, 0, 0, 10)
    measurement = Measurement(samples_ns=(9_000,) * 8, waited_ns=waited_ns, num_warmup=1)
    assert measurement.steady == (1, 3, 4, 5, 6, 7)
    assert measurement.steady_ns == (9_000,) * 6
    # With fewer than five undisturbed samples, all after the warm-up count.
    disturbed = Measurement(samples_ns=(9_000,) * 8, waited_ns=(900,) * 8, num_warmup=1)
    assert disturbed.steady == tuple(range(1, 8))


def test_measurement_survives_the_way_through_json() -> None:
    measurement = Measurement(samples_ns=(3, 1, 2), num_warmup=1)
    assert msgspec.json.decode(msgspec.json.encode(measurement), type=Measurement) == measurement


def test_work_between_some_steps_is_told_apart() -> None:
    rollouts = Measurement(samples_ns=((1_000,) * 9 + (41_000,)) * 5)
    assert rollouts.median_ns == 1_000
    other = rollouts.other
    assert other is not None
    assert other.value_ns == pytest.approx(4_000)
    # One of five more or less may have been seen.
    assert other.low_ns == pytest.approx(4_000 / 1.2)
    assert other.high_ns == pytest.approx(4_000 * 1.2)
    assert rollouts.longer == (9, 19, 29, 39, 49)
    assert not rollouts.has_rare_work


def test_how_often_other_work_comes_is_not_known_from_little() -> None:
    nothing = Measurement(samples_ns=(1_000,) * 50).other
    assert nothing is not None
    assert (nothing.value_ns, nothing.high_ns) == (0, 0)
    once = Measurement(samples_ns=(1_000,) * 50 + (90_000,))
    assert (once.other, once.has_rare_work) == (None, True)
    hiccup = Measurement(samples_ns=(1_000,) * 200 + (9_000,))
    assert not hiccup.has_rare_work
    assert hiccup.other is not None
    assert 0 < hiccup.other.value_ns < 50
    waited = Measurement(samples_ns=(1_000, 90_000) * 10, waited_ns=(900, 80_000) * 10)
    assert waited.is_disturbed
    # What waited for more than it took tells nothing of rare work.
    assert not Measurement(samples_ns=(1_000,) * 9, waited_ns=(1_100,) * 9).has_rare_work
    assert waited.other is None
    assert waited.own_ns == 5_050

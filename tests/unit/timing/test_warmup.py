from __future__ import annotations

import numpy as np
import pytest

from breakeven.timing import find_warmup


def noise(count: int, seed: int = 0) -> list[float]:
    """Return steps of about 1 ms with the right-skewed noise of a busy machine."""
    return list(1e6 * np.random.default_rng(seed).lognormal(0.0, 0.05, count))


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)])
def test_a_few_samples_lose_the_first_unless_it_is_all_there_is(count: int, expected: int) -> None:
    assert find_warmup(noise(count)) == expected


@pytest.mark.parametrize("count", [5, 8, 100])
def test_constant_samples_lose_the_first_alone(count: int) -> None:
    assert find_warmup([1_000_000] * count) == 1


def test_two_levels_are_told_apart_exactly() -> None:
    # Dropping the 4 slow steps leaves no variance at all, dropping fewer leaves some.
    assert find_warmup([900, 900, 900, 900, *[100] * 16]) == 4


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("slow", [1, 5, 20])
def test_slow_start_is_found(slow: int, seed: int) -> None:
    samples = noise(100, seed)
    for position in range(slow):
        samples[position] *= 3.0
    # Whatever else the noise makes it drop, it is never a slow one less and never half.
    assert slow <= find_warmup(samples) <= slow + 30


def test_decaying_start_is_cut_where_it_meets_the_noise() -> None:
    samples = noise(200)
    for position in range(200):
        samples[position] *= 1 + 4 * 0.8**position
    # 4 * 0.8**15 is 14 %, three standard deviations; 4 * 0.8**30 is half a percent.
    assert 12 <= find_warmup(samples) <= 35


@pytest.mark.parametrize("position", [60, 80, 99])
def test_hiccup_late_in_the_run_is_no_warmup(position: int) -> None:
    calm = noise(100)
    disturbed = [*calm]
    disturbed[position] *= 200
    assert find_warmup(disturbed) <= 15
    assert find_warmup(calm) <= 15


@pytest.mark.parametrize("count", [5, 6, 11, 50])
def test_at_most_half_is_dropped(count: int) -> None:
    falling = [float(count - position) ** 3 for position in range(count)]
    assert find_warmup(falling) == count // 2


def test_samples_are_left_as_they_were() -> None:
    samples = np.array([5e6, *noise(9), 900e6])
    before = samples.copy()
    find_warmup(samples)
    assert (samples == before).all()

"""The count of steps behind the live line."""

from __future__ import annotations

import pytest

from breakeven.capture.process.run_to_end import StepCounter, _clock


@pytest.mark.parametrize(
    ("updates", "num_steps"),
    [
        ("", 0),
        ("AAAA", 4),
        ("ABABAB", 3),  # a GAN
        ("CCCGCCCG", 6),  # a critic that is updated more often
        ("AAABBB", 5),  # one training after another: the first step of the next is not told apart
    ],
)
def test_a_round_of_all_optimizers_is_a_step(updates: str, num_steps: int) -> None:
    counter = StepCounter()
    for time_s, optimizer in enumerate(updates):
        counter.count(ord(optimizer), float(time_s))
    assert counter.num_steps == num_steps


def test_speed_is_from_the_first_step_to_the_last() -> None:
    counter = StepCounter()
    assert counter.steps_per_s == 0
    # What comes before the first step, such as reading the data, is no part of its speed.
    counter.count(1, 100.0)
    assert counter.steps_per_s == 0
    for number in range(1, 5):
        counter.count(1, 100.0 + number / 2)
    assert counter.steps_per_s == 2.0


@pytest.mark.parametrize(
    ("duration_s", "text"), [(0.4, "0:00"), (61.6, "1:02"), (3600, "1:00:00"), (1e6, "277:46:40")]
)
def test_time_left_as_a_clock_shows_it(duration_s: float, text: str) -> None:
    assert _clock(duration_s) == text

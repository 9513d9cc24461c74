"""What a script does between its steps, by its stack."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest

from breakeven.capture.sessions.between_steps import OtherTime, StackSamples, other_work_of
from breakeven.timing import Measurement
from breakeven.trace import Location

PAUSE_S = 0.15


def step() -> None:
    time.sleep(PAUSE_S)


def evaluate() -> None:
    time.sleep(PAUSE_S)
    time.sleep(PAUSE_S)


def save() -> None:
    time.sleep(PAUSE_S)


@pytest.mark.timing
def test_what_lies_between_steps_is_named_by_the_line_that_leaves_them() -> None:
    updates = 0
    first = test_what_lies_between_steps_is_named_by_the_line_that_leaves_them.__code__
    with StackSamples(lambda: updates) as samples:
        for updates in range(1, 5):
            step()
            if updates % 2 == 0:
                evaluate()
                save()
    found = samples.between(steps={1, 3}, longer={2, 4}, expected=0.75)
    lines = [first.co_firstlineno + offset for offset in (8, 9)]
    assert found is not None
    assert [work.location for work in found] == [
        Location(file=__file__, line=lines[0], function="evaluate"),
        Location(file=__file__, line=lines[1], function="save"),
    ]
    assert found[0].share > found[1].share
    assert sum(work.share for work in found) == pytest.approx(1, rel=0.1)
    assert samples.between(steps=set(), longer={2, 4}, expected=0.75) == ()


@pytest.mark.timing
def test_steps_too_short_to_be_seen_are_known_by_their_ends() -> None:
    updates = 0
    with StackSamples(lambda: updates) as samples:
        for number in range(1, 5):
            updates = number
            samples.note_update()
            save()
    (work,) = samples.between(steps=set(), longer={1, 2, 3, 4}, expected=1.0) or ()
    assert (work.location.function, work.share) == ("save", 1.0)
    # Steps that do the same, and take longer for it, do nothing else.
    assert samples.between(steps={2, 4}, longer={1, 3}, expected=0.75) is None


@pytest.mark.timing
def test_what_precedes_the_steps_in_a_loop_around_them_comes_again() -> None:
    updates = 0
    first = test_what_precedes_the_steps_in_a_loop_around_them_comes_again.__code__
    with StackSamples(lambda: updates) as samples:
        save()  # start-up: once
        for _ in range(2):
            evaluate()
            for _ in range(2):
                step()
                updates += 1
                samples.note_update()
    line = first.co_firstlineno + 7
    expected = Location(file=__file__, line=line, function="evaluate")
    found = samples.first_pass()
    assert [work.location for work in found.other_work] == [expected]
    # Of a pass of two steps; the samples miss a part of it on a busy machine.
    assert found.other is not None
    assert found.other.low_ns < PAUSE_S * 1e9 < found.other.high_ns
    # A whole pass of steps alone, and it does not come again.
    assert not samples.first_pass(num_steps=3).other_work


@pytest.mark.timing
def test_what_precedes_the_first_step_in_its_own_loop_is_the_step() -> None:
    updates = 0
    with StackSamples(lambda: updates) as samples:
        save()
        for _ in range(2):
            step()
            updates += 1
            samples.note_update()
    assert not samples.first_pass().other_work


def test_the_gap_to_record_is_the_first_of_those_that_take_most_of_the_time() -> None:
    # A line of logging after ten steps, a validation after thirty.
    samples_ns = [1_000_000] * 100

    def found(samples_ns: list[int]) -> OtherTime:
        measurement = Measurement(samples_ns=tuple(samples_ns), num_warmup=1)
        same = cast(StackSamples, SimpleNamespace(between=lambda *_, **__: None))
        return other_work_of(measurement, range(len(samples_ns) + 1), same)

    samples_ns[10::10] = [4_000_000] * len(samples_ns[10::10])
    samples_ns[30::30] = [201_000_000, 211_000_000, 206_000_000]
    other = found(samples_ns)
    # Stacks do not tell it from the steps: what it is has to be recorded.
    assert (other.other, other.other_work) == (None, ())
    assert other.gap is not None
    assert (other.gap.num_updates, other.gap.time_ns) == (31, 205_000_000)
    # What hardly takes any of the time is not recorded.
    rare_ns = [1_000_000] * 1_000
    rare_ns[300::300] = [4_000_000] * 3
    assert found(rare_ns).gap is None


@pytest.mark.parametrize("is_seen_again", [False, True])
def test_the_first_pass_counts_unless_steps_enough_show_that_it_was_the_only_one(
    is_seen_again: bool,
) -> None:
    asked: list[int] = []

    def first_pass(num_steps: int) -> OtherTime:
        asked.append(num_steps)
        return OtherTime()

    samples_ns = [1_000_000] * 100
    if is_seen_again:
        samples_ns[50] = 500_000_000
    stacks = cast(StackSamples, SimpleNamespace(first_pass=first_pass))
    other_work_of(Measurement(samples_ns=tuple(samples_ns)), range(101), stacks)
    assert asked == [0 if is_seen_again else 100]

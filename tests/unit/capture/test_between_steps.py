"""What a script does between its steps, by its stack; the loops around them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType, SimpleNamespace
from typing import cast

import msgspec
import pytest
import torch

from breakeven.capture.sessions.between_steps import (
    OtherTime,
    StackSamples,
    StepLoop,
    loops_around,
    other_work_of,
)
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

    def between(*_: object, expected: float) -> None:
        assert msgspec.json.encode(expected)  # shares of it are sent

    def found(samples_ns: list[int]) -> OtherTime:
        measurement = Measurement(samples_ns=tuple(samples_ns), num_warmup=1)
        same = cast(StackSamples, SimpleNamespace(between=between))
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


def loops_here() -> list[StepLoop]:
    frame: FrameType | None = sys._getframe(1)
    return list(loops_around([frame] if frame else []))


class Loader:
    """Counts how often it is asked for batches."""

    num_asked = 0

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[int]:
        self.num_asked += 1
        return iter(range(7))


def test_lengths_are_known_where_asking_changes_nothing() -> None:
    args, rows, loader = SimpleNamespace(size=4), torch.zeros(10, 2), Loader()
    found: list[list[StepLoop]] = []
    for _ in enumerate(loader):
        found.append(loops_here())
        break
    for _ in rows.split(args.size):
        found.append(loops_here())
        break
    for _ in range(0, len(rows), 2):
        found.append(loops_here())
        break
    assert [loop.num_passes for (loop,) in found] == [7, 3, 5]
    assert loader.num_asked == 1


def test_lengths_that_only_the_script_could_tell_are_unknown() -> None:
    calls: list[int] = []

    def batches() -> Sequence[int]:
        calls.append(1)
        return (1, 2)

    found: list[StepLoop] = []
    for _ in batches():
        found += loops_here()
        break
    for _ in (number for number in range(3)):
        found += loops_here()
        break
    while True:
        found += loops_here()
        break
    assert [loop.num_passes for loop in found] == [None, None, None]
    assert len(calls) == 1


def test_loops_are_told_from_the_outside_to_the_inside() -> None:
    for number in range(2):
        assert number < 2
        for _ in range(3):
            outer, inner = loops_here()
            assert (outer.num_passes, inner.num_passes) == (2, 3)
            # What a loop fetches next is none of its work, but for that of the steps.
            assert (outer.lines.start, outer.lines.stop) == (
                inner.lines.start - 1,
                inner.lines.stop,
            )

            def step() -> list[StepLoop]:
                return loops_here()  # in a function of its own, in none of these loops

            assert step() == []


def test_generated_code_has_no_loops() -> None:
    frames: list[FrameType] = []
    exec("for _ in range(2): frames.append(here())", {"frames": frames, "here": sys._getframe})
    assert loops_around(frames) == ()


@pytest.mark.parametrize("size", [3, 4])
def test_a_loop_over_what_has_changed_is_as_long_as_that_is_now(size: int) -> None:
    items = list(range(size))
    for _ in items:
        (loop,) = loops_here()
        assert loop.num_passes == size

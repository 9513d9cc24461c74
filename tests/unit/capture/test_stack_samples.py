"""What a script does between its steps, by its stack."""

from __future__ import annotations

import time

import pytest

from breakeven.capture.sessions.plain_parts import StackSamples
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

"""The loops around the first step, and how often they run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import FrameType, SimpleNamespace

import pytest
import torch

from breakeven.capture.sessions.between_steps import StepLoop, loops_around


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

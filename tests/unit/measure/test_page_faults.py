"""Pages are counted per step, after the first steps have set up what stays."""

from __future__ import annotations

import mmap

from breakeven.measure import PageFaults

_PAGES = 64


def _touch_new_pages() -> None:
    with mmap.mmap(-1, _PAGES * mmap.PAGESIZE) as memory:
        for page in range(_PAGES):
            memory[page * mmap.PAGESIZE] = 1


def test_new_pages_of_a_step_are_counted() -> None:
    faults = PageFaults()
    for step in range(1, 17):
        _touch_new_pages()
        faults.mark(step)
    assert _PAGES <= faults.per_step(16) < 2 * _PAGES


def test_the_first_steps_do_not_count() -> None:
    faults = PageFaults()
    for step in range(1, 17):
        if step < 3:
            _touch_new_pages()
        faults.mark(step)
    assert faults.per_step(16) < _PAGES / 4


def test_one_step_says_nothing() -> None:
    faults = PageFaults()
    faults.mark(1)
    assert faults.per_step(1) == 0.0

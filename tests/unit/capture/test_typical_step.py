"""The step that stands for all recorded ones."""

from __future__ import annotations

import pytest

from breakeven.capture.messages import LoaderUse
from breakeven.capture.record.event_log import StepLog
from breakeven.capture.record.typical_step import Segment, typical_of


def step(num_batches: int) -> Segment:
    use = LoaderUse(
        batch_size=8, batches_per_step=num_batches, num_samples=0, num_workers=0, wait_ns=0.0
    )
    return Segment(
        log=StepLog(),
        peak_bytes=0,
        live_bytes=0,
        num_backwards=1,
        is_whole=True,
        loader=use if num_batches else None,
    )


@pytest.mark.parametrize("fetches", [(2, 1, 1, 1, 0), (1, 0, 2, 1), (1, 1, 0)])
def test_a_loader_that_prefetches_does_not_hide_the_batch_size(fetches: tuple[int, ...]) -> None:
    chosen = typical_of([step(number) for number in fetches])
    assert {one.batch_size for one in chosen} == {8}
    assert len(chosen) == fetches.count(1)

from __future__ import annotations

import time

import pytest
from torch.utils.data import DataLoader, Dataset

from breakeven.capture._loader_watch import LoaderWatch

SAMPLE_S = 0.004


class Slow(Dataset[int]):
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        time.sleep(SAMPLE_S)
        return index


@pytest.mark.parametrize(
    "length", [12, 400]
)  # an epoch shorter than what lies ready, and a long one
def test_pace_of_workers_is_that_of_their_work(length: int) -> None:
    with LoaderWatch() as watch:
        for _ in DataLoader(Slow(length), batch_size=2, num_workers=1):
            break
        assert watch.time_alone() > 2 * SAMPLE_S * 1e9


@pytest.mark.parametrize("num_workers", [0, 1])
def test_pace_is_unknown_without_workers_or_with_too_few_batches(num_workers: int) -> None:
    with LoaderWatch() as watch:
        list(DataLoader(Slow(4), batch_size=2, num_workers=num_workers))
        assert watch.time_alone() == 0.0

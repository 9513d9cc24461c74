from __future__ import annotations

import time

import pytest
from torch.utils.data import DataLoader, Dataset

from breakeven.capture.record.loader_watch import LoaderWatch

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
        pace_ns, taking_ns = watch.time_alone()
        # Waiting for a worker takes no processor time.
        assert pace_ns > 2 * SAMPLE_S * 1e9
        assert 0 < taking_ns < pace_ns


class Broken(Slow):
    def __getitem__(self, index: int) -> int:
        if index > 4:
            raise OSError("a file is missing")
        return index


class Counting(DataLoader[int]):
    """A loader of one's own, around that of torch."""

    def __iter__(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        yield from super().__iter__()


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Slow(400), batch_size=2),
        DataLoader(Broken(400), batch_size=2, num_workers=1),
        Counting(Slow(4), batch_size=2, num_workers=1),
    ],
)
def test_pace_is_unknown_without_workers_and_where_the_script_is_in_the_way(
    loader: DataLoader[int],
) -> None:
    with LoaderWatch() as watch:
        for _ in loader:
            break
        assert watch.time_alone() == (0.0, 0.0)


def test_pace_of_two_workers_counts_rounds_of_both() -> None:
    with LoaderWatch() as watch:
        for _ in DataLoader(Slow(4_000), batch_size=4, num_workers=2):
            break
        # Each takes four samples for a batch, and they do so at the same time.
        assert 2 * SAMPLE_S < watch.time_alone()[0] / 1e9 < 40 * SAMPLE_S


def test_workers_rest_and_go_on() -> None:
    with LoaderWatch() as watch:
        batches = iter(DataLoader(Slow(4_000), batch_size=2, num_workers=1))
        next(batches)
        assert watch.rest(watch.time_alone()[0])
        first, again = next(batches), next(batches)
        first += 1  # the script owns what it gets
        assert again.tolist() == next(batches).tolist()
        watch.work_on()
        assert next(batches).tolist() == [number + 2 for number in again.tolist()]


def test_workers_do_not_rest_after_an_epoch_that_the_script_has_not_ended() -> None:
    with LoaderWatch() as watch:
        for _ in DataLoader(Slow(12), batch_size=2, num_workers=1):
            break
        assert not watch.rest(watch.time_alone()[0])

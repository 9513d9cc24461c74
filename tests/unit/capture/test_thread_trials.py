"""The steps after a plain run that say what fewer threads would take."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from breakeven.capture import PlainRun
from breakeven.capture.sessions.in_process import _repeat, _request
from breakeven.capture.sessions.plain import PlainSession

MS = 1_000_000


class HeldUp(IterableDataset[torch.Tensor]):
    """Takes 1 ms for a sample on one thread, and 8 ms on more, as beside other work."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(0.001 if torch.get_num_threads() == 1 else 0.008)
            yield torch.ones(4)


@pytest.fixture
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.timing
@pytest.mark.usefixtures("_two_threads")
def test_each_number_of_threads_has_its_own_time_for_batches() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters())
    batches: list[Iterator[torch.Tensor]] = []

    def step() -> None:
        if not batches:
            batches.append(iter(DataLoader(HeldUp(), batch_size=1)))
        optimizer.zero_grad()
        model(next(batches[0])).sum().backward()
        optimizer.step()

    run = _repeat(step, PlainSession, replace(_request("step", 0.1), tries_threads=True))
    assert isinstance(run, PlainRun)
    assert run.loader is not None
    assert run.loader.wait_ns > 8 * MS
    (trial,) = run.trials
    assert trial.num_threads == 1
    assert trial.loader_wait_ns is not None
    assert MS < trial.loader_wait_ns < 8 * MS

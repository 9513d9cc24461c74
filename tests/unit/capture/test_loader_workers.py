"""Data sets that ask which worker process they are in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _len_torch_dispatch_stack
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)

from breakeven.capture import record_steps
from breakeven.capture.record.loader_facts import needs_workers
from breakeven.trace import HostWork, LoaderFacts, StepTrace

NUM_WORKERS = 2


class Rows(Dataset[torch.Tensor]):
    def __init__(self, num: int = 64) -> None:
        self.rows = torch.randn(num, 4)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


class Asserting(Rows):
    """Refuses to load in the training process, and where something is recorded."""

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        assert info is not None
        assert info.num_workers == NUM_WORKERS
        assert _len_torch_dispatch_stack() == 0
        return torch.full((4,), float(os.getpid()), dtype=torch.float64)


class Sharded(IterableDataset[torch.Tensor]):
    """Gives each worker a part of the numbers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, 64, step):
            yield torch.full((4,), float(number))


class Prepared(Rows):
    """Is opened in each worker."""

    is_open = False

    def __getitem__(self, index: int) -> torch.Tensor:
        assert self.is_open
        return self.rows[index]


def open_it(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.is_open = True


def collate_by_worker(samples: list[torch.Tensor], scale: float = 1.0) -> torch.Tensor:
    assert get_worker_info() is not None
    return torch.stack(samples) * scale


def recorded(
    make: Callable[[], DataLoader[Any]], see: Callable[[torch.Tensor], object] = lambda _: None
) -> StepTrace:
    with record_steps() as recording:
        model = nn.Linear(4, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for batch in make():
            x = batch[0] if isinstance(batch, list) else batch
            see(x)
            optimizer.zero_grad()
            model(x.float().cuda()).square().mean().backward()
            optimizer.step()
    return recording.trace


def loader_facts(trace: StepTrace) -> LoaderFacts:
    (facts,) = trace.facts.loaders
    return facts


NEEDING: dict[str, Callable[..., DataLoader[Any]]] = {
    "assertion": lambda **given: DataLoader(Asserting(), 8, num_workers=NUM_WORKERS, **given),
    "init": lambda **given: DataLoader(
        Prepared(), 8, num_workers=NUM_WORKERS, worker_init_fn=open_it, **given
    ),
    "collate": lambda **given: DataLoader(
        Rows(), 8, num_workers=NUM_WORKERS, collate_fn=partial(collate_by_worker, scale=2.0),
        **given,
    ),
}  # fmt: skip


@pytest.mark.parametrize("make", NEEDING.values(), ids=NEEDING.keys())
def test_workers_stay_where_something_asks_for_them(
    make: Callable[..., DataLoader[Any]],
) -> None:
    trace = recorded(make)
    facts = loader_facts(trace)
    assert (facts.num_workers, facts.batch_size) == (NUM_WORKERS, 8)
    work = [event for event in trace.events if isinstance(event, HostWork) and event.kind == "data"]
    assert [one.num_workers for one in work] == [NUM_WORKERS]
    # The wait for a worker does not show the time of a batch.
    assert facts.fetch_ns == facts.fetch_cpu_ns == 0
    assert not trace.faults


def test_batches_are_pinned_beside_the_step() -> None:
    trace = recorded(lambda: NEEDING["init"](pin_memory=True))
    assert not [op for op in trace.ops if op.location is None]
    assert [copy.is_pinned for copy in trace.copies] == [True]


def test_workers_are_other_processes() -> None:
    processes: set[float] = set()
    recorded(NEEDING["assertion"], lambda batch: processes.update(batch.flatten().tolist()))
    assert len(processes) == NUM_WORKERS
    assert os.getpid() not in processes


def test_sharded_data_set_yields_every_sample_once() -> None:
    numbers: list[float] = []
    recorded(
        lambda: DataLoader(Sharded(), 8, num_workers=NUM_WORKERS),
        lambda batch: numbers.extend(batch[:, 0].tolist()),
    )
    assert sorted(numbers) == list(range(64))
    # Each worker fills batches of its own part.
    assert sorted(numbers[:8]) == list(range(0, 16, 2))


def test_other_workers_are_left_out() -> None:
    processes: set[int] = set()

    class Noting(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            processes.add(os.getpid())
            return super().__getitem__(index)

    trace = recorded(lambda: DataLoader(Noting(), 8, num_workers=NUM_WORKERS))
    assert processes == {os.getpid()}
    assert loader_facts(trace).num_workers == NUM_WORKERS


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: DataLoader(Rows(), 8), False),
        (lambda: DataLoader(TensorDataset(torch.ones(8, 4))), False),
        (lambda: DataLoader(Asserting(), 8), True),
        (lambda: DataLoader(Subset(Asserting(), [1, 2]), 2), True),
        (lambda: DataLoader(ConcatDataset([Rows(), Asserting()]), 2), True),
        (lambda: DataLoader(Sharded(), 8), True),
        (lambda: DataLoader(Rows(), 8, worker_init_fn=open_it), True),
        (lambda: DataLoader(Rows(), 8, collate_fn=collate_by_worker), True),
        (lambda: DataLoader([1, 2, 3]), False),
    ],
)
def test_what_asks_for_workers_is_known_by_its_code(
    make: Callable[[], DataLoader[Any]], expected: bool
) -> None:
    assert needs_workers(make()) is expected


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_may_be_started_otherwise(method: str) -> None:
    trace = recorded(partial(NEEDING["assertion"], multiprocessing_context=method))
    assert loader_facts(trace).num_workers == NUM_WORKERS

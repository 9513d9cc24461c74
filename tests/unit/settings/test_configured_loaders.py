"""Batches, workers and batch sizes of DataLoaders in code that does not know of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)
from torch.utils.data._utils.collate import default_collate_fn_map

from breakeven.configure.loaders import gather
from breakeven.settings import configured
from breakeven.settings.loaders import _MARK, mark_pinned, without_waiting
from breakeven.trace import Configuration

GATHERED = Configuration(gathers_batches=True)


def tensors(count: int = 37) -> TensorDataset:
    values = torch.arange(count * 6, dtype=torch.float32).reshape(count, 2, 3)
    return TensorDataset(values, torch.arange(count), torch.rand(count) > 0.5)


class Table(Dataset[tuple[torch.Tensor, ...]]):
    """A data set as people write it, which holds three tensors."""

    def __init__(self, count: int = 37) -> None:
        self.features, self.labels, self.flags = tensors(count).tensors

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        """Return a sample."""
        label = self.labels[index]
        return self.features[index], label, self.flags[index]


def epochs(loader: Any, count: int = 2) -> list[Any]:
    return [batch for _ in range(count) for batch in loader]


def loaders() -> dict[str, Any]:
    """Return how a script may make its loader, by name."""
    return {
        "in order": lambda: DataLoader(tensors(), batch_size=8),
        "shuffled": lambda: DataLoader(tensors(), 8, True, drop_last=True),
        "own generator": lambda: DataLoader(
            tensors(), 8, shuffle=True, generator=torch.Generator().manual_seed(5)
        ),
        "subset": lambda: DataLoader(Subset(tensors(), [3, 1, -1, 30, 8]), batch_size=2),
        "subset of tensor": lambda: DataLoader(Subset(tensors(), torch.arange(9)), batch_size=2),  # type: ignore[arg-type]
        "split": lambda: DataLoader(random_split(tensors(), [30, 7])[0], 8, shuffle=True),
        "subset of subset": lambda: DataLoader(
            Subset(Subset(tensors(), list(range(1, 20))), [4, 2, 0]), batch_size=2
        ),
        "with replacement": lambda: DataLoader(
            tensors(), sampler=RandomSampler(tensors(), replacement=True), batch_size=5
        ),
        "table": lambda: DataLoader(Table(), batch_size=8, shuffle=True),
        "split of table": lambda: DataLoader(random_split(Table(), [30, 7])[1], 3),
        "batch sampler": lambda: DataLoader(
            tensors(), batch_sampler=BatchSampler(RandomSampler(tensors()), 5, False)
        ),
    }


class _Generators:
    """A batch sampler whose batches can be looked at once."""

    def __iter__(self) -> Iterator[Any]:
        return ((number for number in batch) for batch in ([0, 2], [1]))


def not_gathered() -> dict[str, Any]:
    """Return loaders whose batches are not the tensors' own rows."""

    class Doubled(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return tuple(tensor * 2 for tensor in super().__getitem__(index))

    return {
        "own collation": lambda: DataLoader(tensors(), 8, collate_fn=lambda rows: len(rows)),
        "own data set": lambda: DataLoader(Doubled(*tensors().tensors), 8),
        "no batches": lambda: DataLoader(tensors(), batch_size=None),
        "transposed": lambda: DataLoader(TensorDataset(torch.rand(5, 9).T), 3),
        "with gradient": lambda: DataLoader(TensorDataset(torch.rand(9, requires_grad=True)), 3),
        "channels last": lambda: DataLoader(
            TensorDataset(torch.rand(9, 4, 4, 1).permute(0, 3, 1, 2)), 3
        ),
        "list": lambda: DataLoader(list(range(9)), 4),  # type: ignore[arg-type]
    }


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
        assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
        assert found.requires_grad == expected.requires_grad
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for own, other in zip(found, expected, strict=True):
            assert_same(own, other)
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("name", "configuration"),
    [
        *((name, GATHERED) for name in [*loaders(), *not_gathered()]),
        *((name, Configuration(num_workers=1)) for name in loaders()),
        *((name, Configuration(num_workers=1, gathers_batches=True)) for name in loaders()),
    ],
)
def test_batches_and_random_numbers_are_the_same(name: str, configuration: Configuration) -> None:
    make = {**loaders(), **not_gathered()}[name]
    torch.manual_seed(3)
    expected, after = epochs(make()), torch.rand(3)
    torch.manual_seed(3)
    with configured(configuration) as settings:
        loader = make()
        found = epochs(loader)
    assert torch.equal(torch.rand(3), after)
    assert_same(found, expected)
    effects = {"num_workers": 1, "gathers_batches": int(name in loaders())}
    assert settings.effects() == {each: effects[each] for each in configuration.changes}


def test_gathered_batch_is_not_put_together_from_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a single sample was taken")

    dataset = tensors()
    with configured(GATHERED):
        loader = DataLoader(dataset, 8, shuffle=True)
        monkeypatch.setattr(TensorDataset, "__getitem__", refuse)
        assert sum(len(batch[0]) for batch in loader) == len(dataset)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(tensors(), batch_sampler=[[slice(0, 2)], [slice(2, 4)]]),  # type: ignore[list-item]
        lambda: DataLoader(Subset(tensors(), [5, 4, 3]), batch_sampler=_Generators()),  # type: ignore[arg-type]
        lambda: DataLoader(tensors(), batch_sampler=[[torch.tensor([1])]]),  # type: ignore[list-item]
        lambda: DataLoader(tensors(), batch_sampler=[{1: 0}.keys()]),  # type: ignore[list-item]
        lambda: DataLoader(tensors(), batch_sampler=[list(np.arange(3)), [True]]),  # type: ignore[list-item]
    ],
)
def test_whatever_a_sampler_yields_is_taken_as_before(make: Any) -> None:
    torch.manual_seed(3)
    expected = epochs(make())
    torch.manual_seed(3)
    with configured(GATHERED):
        found = epochs(make())
    assert_same(found, expected)


@pytest.mark.parametrize("indices", [[1.5, 2.0], [True, False], [], [[0, 1]], [torch.ones(2)]])
def test_indices_that_are_no_numbers_of_rows_are_left_to_the_data_set(indices: list[Any]) -> None:
    assert gather(tensors(), indices) is None


@pytest.mark.parametrize("kind", [torch.Tensor, tuple, (int, tuple)])
def test_collation_that_was_extended_is_used(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    def count(batch: Any, **_: Any) -> int:
        return len(batch)

    monkeypatch.setitem(default_collate_fn_map, kind, count)
    with configured(GATHERED) as settings:
        found = next(iter(DataLoader(tensors(), 8)))
    assert found == (8 if kind is not torch.Tensor else [8, 8, 8])
    assert settings.effects() == {"gathers_batches": 0}


def test_index_beyond_the_data_is_an_error_as_before() -> None:
    with configured(GATHERED), pytest.raises(IndexError):
        list(DataLoader(tensors(), sampler=[99], batch_size=1))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_workers_are_added_where_the_script_does_not_say() -> None:
    wanted = Configuration(num_workers=2)
    with configured(wanted) as settings:
        plain = DataLoader(tensors())
        assert (plain.num_workers, plain.persistent_workers) == (2, True)
        assert DataLoader(tensors(), num_workers=0).num_workers == 0
        assert DataLoader(Stream()).num_workers == 0
        own = DataLoader(tensors(), num_workers=1)
        assert (own.num_workers, own.persistent_workers) == (1, False)
        short = DataLoader(tensors(), persistent_workers=False)
        assert (short.num_workers, short.persistent_workers) == (2, False)
    assert settings.effects() == {"num_workers": 2}


def test_batch_size_is_changed_where_it_is_the_given_one() -> None:
    wanted = Configuration(loader_batch_size=8, new_batch_size=16)
    with configured(wanted) as settings:
        assert DataLoader(tensors(), 8).batch_size == 16
        assert DataLoader(tensors(), batch_size=8, shuffle=True).batch_size == 16
        assert DataLoader(tensors(), 9).batch_size == 9
        assert DataLoader(tensors(), batch_size=None).batch_size is None
        sampler = BatchSampler(RandomSampler(tensors()), 8, False)
        assert DataLoader(tensors(), batch_sampler=sampler).batch_size is None
    assert settings.effects() == {"loader_batch_size": 2, "new_batch_size": 2}


def test_errors_of_loaders_are_those_of_torch() -> None:
    with configured(Configuration(num_workers=1, gathers_batches=True)):
        with pytest.raises(TypeError, match="unexpected keyword"):
            DataLoader(tensors(), speed=3)  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="mutually exclusive"):
            DataLoader(tensors(), shuffle=True, sampler=[1])


def test_copy_of_a_pinned_batch_does_not_wait_unless_the_script_says_so() -> None:
    asked: list[dict[str, Any]] = []
    copy = without_waiting(lambda _tensor, *_, **options: asked.append(options))
    batch = {"x": [torch.ones(2)], "n": 3}
    copy(batch["x"][0], "cuda")  # type: ignore[index]
    mark_pinned(batch)
    pinned = batch["x"][0]  # type: ignore[index]
    assert hasattr(pinned, _MARK)
    copy(pinned, "cuda")
    copy(pinned, torch.float16)
    copy(pinned, "cuda", torch.float16, True)
    copy(pinned, "cuda", non_blocking=False)
    assert asked == [
        {}, {"non_blocking": True}, {"non_blocking": True}, {}, {"non_blocking": False},
    ]  # fmt: skip
    assert default_collate([pinned, pinned]).shape == (2, 2)

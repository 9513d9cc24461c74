"""Batches taken from a data set of tensors at once, instead of sample by sample."""

from __future__ import annotations

import functools
from numbers import Integral
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, default_collate
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from breakeven.configure.patching import Patches
from breakeven.configure.tensor_rows import row_tensors


class whole_batches(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, a DataLoader over tensors indexes them once per batch.

    It applies where samples are rows of tensors that the data set holds, and to subsets of such a
    data set, with torch's own collation. The batches are the same to the bit, and so are the random
    numbers that the sampler draws.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_loaders = 0

    @property
    def num_applied(self) -> int:
        """Return how many DataLoaders were made whose batches are taken at once."""
        return self._num_loaders

    def __enter__(self) -> whole_batches:
        super().__enter__()
        original_init = DataLoader.__init__
        original_fetch = _MapDatasetFetcher.fetch

        @functools.wraps(original_init)
        def initialize(loader: Any, *args: Any, **kwargs: Any) -> None:
            original_init(loader, *args, **kwargs)
            self._num_loaders += has_whole_batches(loader)

        @functools.wraps(original_fetch)
        def fetch(fetcher: Any, indices: Any) -> Any:
            if fetcher.auto_collation and _stacks(fetcher.collate_fn):
                batch = gather(fetcher.dataset, indices)
                if batch is not None:
                    return batch
            return original_fetch(fetcher, indices)

        self.replace(DataLoader, "__init__", initialize)
        self.replace(_MapDatasetFetcher, "fetch", fetch)
        return self


def has_whole_batches(loader: Any) -> bool:
    """Return whether the batches of a DataLoader can be taken at once from what it loads."""
    is_collated = loader._auto_collation and _stacks(loader.collate_fn)
    return is_collated and bool(row_tensors(loader.dataset))


def gather(dataset: Any, indices: Any) -> list[torch.Tensor] | None:
    """Return the batch at ``indices``; None where it cannot be had at once."""
    tensors = row_tensors(dataset)
    if not tensors:
        return None
    rows = _row_numbers(indices)
    while rows and type(dataset) is Subset:
        chosen, dataset = dataset.indices, dataset.dataset
        rows = _row_numbers([chosen[row] for row in rows])
    if not rows:
        return None
    index = torch.tensor(rows)
    return [tensor[index] for tensor in tensors]


def _row_numbers(indices: Any) -> list[int] | None:
    """Return a list of numbers as those of Python; None for whatever else a sampler yields."""
    if type(indices) is not list:
        return None
    numbers = [index if type(index) is int else _row_number(index) for index in indices]
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) else None


def _row_number(index: Any) -> int | None:
    if isinstance(index, torch.Tensor):
        is_number = index.dim() == 0 and index.dtype is torch.int64 and index.device.type == "cpu"
        return int(index) if is_number else None
    is_number = isinstance(index, Integral) and not isinstance(index, bool)
    return int(index) if is_number else None


def _stacks(collate: Any) -> bool:
    """Return whether samples are put together as torch does it, tensor by tensor."""
    return (
        collate is default_collate
        and default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn
        and not any(issubclass(tuple, kind) for kind in default_collate_fn_map)
    )

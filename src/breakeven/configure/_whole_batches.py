"""Batches taken from a data set of tensors at once, instead of sample by sample."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from breakeven.configure._patching import Patches
from breakeven.configure._tensor_rows import row_tensors


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
            is_collated = loader._auto_collation and loader.collate_fn is default_collate
            if is_collated and row_tensors(loader.dataset):
                self._num_loaders += 1

        @functools.wraps(original_fetch)
        def fetch(fetcher: Any, indices: Any) -> Any:
            if fetcher.auto_collation and fetcher.collate_fn is default_collate:
                batch = gather(fetcher.dataset, indices)
                if batch is not None:
                    return batch
            return original_fetch(fetcher, indices)

        self.replace(DataLoader, "__init__", initialize)
        self.replace(_MapDatasetFetcher, "fetch", fetch)
        return self


def gather(dataset: Any, indices: Any) -> list[torch.Tensor] | None:
    """Return the batch at ``indices``; None where it cannot be had at once."""
    tensors = row_tensors(dataset)
    if not tensors:
        return None
    while type(dataset) is Subset:
        chosen = dataset.indices
        indices = [chosen[index] for index in indices]
        dataset = dataset.dataset
    try:
        index = torch.as_tensor(indices, device="cpu")
    except (TypeError, ValueError):  # no numbers at all, or tensors of several
        return None
    if index.dtype is not torch.int64 or index.dim() != 1 or not len(index):
        return None
    return [tensor[index] for tensor in tensors]

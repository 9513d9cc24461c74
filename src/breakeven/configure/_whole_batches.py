"""Batches taken from a data set of tensors at once, instead of sample by sample."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from breakeven.configure._patching import Patches


class whole_batches(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, a DataLoader over tensors indexes them once per batch.

    It applies to `torch.utils.data.TensorDataset` and subsets of one, with torch's own collation.
    The batches are the same to the bit, and so are the random numbers that the sampler draws.
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
            if is_collated and tensors_behind(loader.dataset):
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


def tensors_behind(dataset: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a data set that is nothing but them, or a subset; else none.

    Tensors that are not plain are none either: stacked samples of theirs may lie otherwise in
    memory than samples taken at once, or remember where they come from.
    """
    while type(dataset) is Subset:
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset or not all(map(_is_plain, dataset.tensors)):
        return ()
    return dataset.tensors


def gather(dataset: Any, indices: Any) -> list[torch.Tensor] | None:
    """Return the batch at ``indices``; None where it cannot be had at once."""
    tensors = tensors_behind(dataset)
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


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and tensor.is_contiguous()
    )

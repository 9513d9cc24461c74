"""Worker processes, read-ahead, pinned memory and batch size of DataLoaders."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from breakeven.configure.by_identity import ByIdentity
from breakeven.configure.changed_loaders import ChangedLoaders

# On the tensors of a batch that a DataLoader has pinned: nobody else writes into them, so that a
# copy may still run when the script goes on.
_MARK = "_breakeven_pinned"


class loader_workers(ChangedLoaders):  # noqa: N801 - a context manager reads as a verb
    """Inside, DataLoaders load in so many processes, which live from epoch to epoch.

    Only those over a map-style data set whose maker did not say how many. The random numbers that
    the main process draws stay the same.

    Args:
        num_workers: At least 0; negative to leave it to the script.
        prefetch_factor: Batches that each of them loads ahead; 0 to leave it to the script.
    """

    def __init__(self, num_workers: int, prefetch_factor: int) -> None:
        super().__init__()
        self._num_workers = num_workers
        self._prefetch_factor = prefetch_factor
        self._num_reading_ahead = 0
        self._made_persistent = ByIdentity[DataLoader[Any], bool]()

    @property
    def num_reading_ahead(self) -> int:
        """Return how many DataLoaders got the read-ahead."""
        return self._num_reading_ahead

    def __enter__(self) -> loader_workers:
        super().__enter__()
        self._draw_seed_each_epoch()
        return self

    def _change(self, given: dict[str, Any], loader: DataLoader[Any]) -> bool:
        if isinstance(given["dataset"], IterableDataset):
            return False
        gets_workers = self._num_workers >= 0 and "num_workers" not in given
        if gets_workers:
            given["num_workers"] = self._num_workers
            if self._num_workers and "persistent_workers" not in given:
                given["persistent_workers"] = True
                self._made_persistent[loader] = True
        is_open = given.get("num_workers") and given.get("prefetch_factor") is None
        if self._prefetch_factor and is_open:
            given["prefetch_factor"] = self._prefetch_factor
            self._num_reading_ahead += 1
        return gets_workers

    def _draw_seed_each_epoch(self) -> None:
        """Let loaders whose workers persist draw the random number that others draw per epoch.

        Otherwise everything random after the first epoch, the order of samples included, would
        differ from the run without workers.
        """
        original = _MultiProcessingDataLoaderIter._reset

        @functools.wraps(original)
        def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            if not first_iter and loader in self._made_persistent:
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            original(iterator, loader, first_iter)

        self.replace(_MultiProcessingDataLoaderIter, "_reset", reset)


class pinned_batches(ChangedLoaders):  # noqa: N801 - a context manager reads as a verb
    """Inside, DataLoaders pin their batches, which are copied to CUDA without waiting.

    Only those whose maker did not say whether to pin.
    """

    def __enter__(self) -> pinned_batches:
        super().__enter__()
        original = _BaseDataLoaderIter.__next__

        @functools.wraps(original)
        def fetch(iterator: Any) -> Any:
            batch = original(iterator)
            if iterator._pin_memory:
                _mark(batch)
            return batch

        self.replace(_BaseDataLoaderIter, "__next__", fetch)
        self.replace(torch.Tensor, "to", _without_waiting(torch.Tensor.to))
        self.replace(torch.Tensor, "cuda", _without_waiting(torch.Tensor.cuda))
        return self

    def _change(self, given: dict[str, Any], loader: DataLoader[Any]) -> bool:
        if "pin_memory" in given:
            return False
        given["pin_memory"] = True
        return True


class other_batch_size(ChangedLoaders):  # noqa: N801 - a context manager reads as a verb
    """Inside, DataLoaders of one batch size get another one.

    Args:
        old: The batch size of those that are changed.
        new: What they get.
    """

    def __init__(self, old: int, new: int) -> None:
        super().__init__()
        self._old = old
        self._new = new

    def _change(self, given: dict[str, Any], loader: DataLoader[Any]) -> bool:
        if given.get("batch_sampler") is not None or given.get("batch_size", 1) != self._old:
            return False
        given["batch_size"] = self._new
        return True


def _mark(batch: Any) -> None:
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            setattr(leaf, _MARK, True)


def _without_waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # A third argument of ``to``, or a second that is a boolean, says it already.
        is_said = "non_blocking" in kwargs or any(isinstance(value, bool) for value in args)
        if not is_said and hasattr(tensor, _MARK):
            kwargs["non_blocking"] = True
        return original(tensor, *args, **kwargs)

    return copy

"""Worker processes, read-ahead, pinned memory and batch size of DataLoaders."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from breakeven.configure._patching import Patches

# On the tensors of a batch that a DataLoader has pinned: nobody else writes into them, so that a
# copy may still run when the script goes on.
_MARK = "_breakeven_pinned"


class loader_workers(Patches):  # noqa: N801 - a context manager reads as a verb
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
        self._num_with_workers = 0
        self._num_reading_ahead = 0
        self._made_persistent: WeakSet[DataLoader[Any]] = WeakSet()

    @property
    def num_applied(self) -> int:
        """Return how many DataLoaders got the workers."""
        return self._num_with_workers

    @property
    def num_reading_ahead(self) -> int:
        """Return how many DataLoaders got the read-ahead."""
        return self._num_reading_ahead

    def __enter__(self) -> loader_workers:
        super().__enter__()
        change_loaders(self, self._change)
        self._draw_seed_each_epoch()
        return self

    def _change(self, given: dict[str, Any], loader: DataLoader[Any]) -> None:
        if isinstance(given["dataset"], IterableDataset):
            return
        if self._num_workers >= 0 and "num_workers" not in given:
            given["num_workers"] = self._num_workers
            if self._num_workers and "persistent_workers" not in given:
                given["persistent_workers"] = True
                self._made_persistent.add(loader)
            self._num_with_workers += 1
        is_open = given.get("num_workers") and given.get("prefetch_factor") is None
        if self._prefetch_factor and is_open:
            given["prefetch_factor"] = self._prefetch_factor
            self._num_reading_ahead += 1

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


class pinned_batches(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, DataLoaders pin their batches, which are copied to CUDA without waiting.

    Only those whose maker did not say whether to pin.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_loaders = 0

    @property
    def num_applied(self) -> int:
        """Return how many DataLoaders pin because of us."""
        return self._num_loaders

    def __enter__(self) -> pinned_batches:
        super().__enter__()
        change_loaders(self, self._change)
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

    def _change(self, given: dict[str, Any], loader: DataLoader[Any]) -> None:
        if "pin_memory" not in given:
            given["pin_memory"] = True
            self._num_loaders += 1


class other_batch_size(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, DataLoaders of one batch size get another one.

    Args:
        old: The batch size of those that are changed.
        new: What they get.
    """

    def __init__(self, old: int, new: int) -> None:
        super().__init__()
        self._old = old
        self._new = new
        self._num_loaders = 0

    @property
    def num_applied(self) -> int:
        """Return how many DataLoaders got the new size."""
        return self._num_loaders

    def __enter__(self) -> other_batch_size:
        super().__enter__()
        change_loaders(self, self._change)
        return self

    def _change(self, given: dict[str, Any], loader: DataLoader[Any]) -> None:
        if given.get("batch_sampler") is None and given.get("batch_size", 1) == self._old:
            given["batch_size"] = self._new
            self._num_loaders += 1


def change_loaders(
    patches: Patches, change: Callable[[dict[str, Any], DataLoader[Any]], None]
) -> None:
    """Let ``change`` edit what DataLoaders are made with.

    Args:
        patches: Undoes it.
        change: Called with the arguments that the maker has given, by name, and the loader.
    """
    original = DataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(loader: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(loader, *args, **kwargs).arguments
        except TypeError:  # torch says it better
            return original(loader, *args, **kwargs)
        given.pop(next(iter(signature.parameters)))  # the loader itself
        change(given, loader)
        return original(loader, **given)

    patches.replace(DataLoader, "__init__", initialize)


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

"""Settings for DataLoaders: worker processes, batch size, pinned memory, data on the GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import NO_LOADER, Count, Setting, StepFacts
from breakeven.trace import Configuration
from breakeven.units import format_bytes, format_percent
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from breakeven.settings.in_effect import configured

_MOST_WORKERS = 8
# Wait for the first batch per worker; starting a worker forks the process and imports nothing.
_WORKER_START_S = 0.3
# Fetching must take at least this share of the step to justify another process.
_LEAST_FETCH_FRACTION = 0.05
# Upper limit on doublings of the batch size; on a CPU, throughput levels off earlier.
_MOST_DOUBLINGS = 5
_UNDO_SIZE = "the DataLoader is as the script made it"
# Upper limit for a data set kept on the device; the step needs the rest of the memory.
_RESIDENT_BYTES = 1 << 30
# Upper limit as a share of the device's free memory: the training needs the rest.
_MAX_DATA_FRACTION = 0.5
# Marks the tensors of a batch that a DataLoader has pinned. No other code writes into them, so a
# copy may still run while the script continues.
_MARK = "_breakeven_pinned"


def _why_no_workers(facts: StepFacts, current: Configuration, num_workers: int) -> str | None:
    if facts.loader is None:
        return NO_LOADER
    if current.gathers_batches:
        return "whole batches are taken from memory, faster than from a process"
    if facts.loader.num_workers == num_workers:
        return "the script already uses that"
    if facts.fetch_fraction < _LEAST_FETCH_FRACTION:
        return f"fetching takes {format_percent(facts.fetch_fraction)} of the step"
    return None


def _load_in_processes(run: configured) -> Count:
    """Let DataLoaders load in ``num_workers`` processes, which persist across epochs.

    Only loaders over a map-style data set change, and only if the script does not set
    ``num_workers``. The main process draws the same random numbers as before.
    """
    import torch
    from torch.utils.data import DataLoader, IterableDataset
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    from breakeven.configure import ByIdentity, change_loaders

    num_workers, num_changed = run.wanted.num_workers, 0
    made_persistent = ByIdentity[DataLoader[Any], bool]()

    def change(given: dict[str, Any], loader: DataLoader[Any]) -> None:
        nonlocal num_changed
        if isinstance(given["dataset"], IterableDataset) or "num_workers" in given:
            return
        num_changed += 1
        given["num_workers"] = num_workers
        if num_workers and "persistent_workers" not in given:
            given["persistent_workers"] = True
            made_persistent[loader] = True

    # A loader with persistent workers skips the random number that other loaders draw per epoch.
    # Draw it here; otherwise all randomness after the first epoch, including the order of samples,
    # would differ from the run without workers.
    original = _MultiProcessingDataLoaderIter._reset

    @functools.wraps(original)
    def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter and loader in made_persistent:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        original(iterator, loader, first_iter)

    change_loaders(run, change)
    run.replace(_MultiProcessingDataLoaderIter, "_reset", reset)
    return lambda _: num_changed


def _own_size(facts: StepFacts) -> int:
    """Return the changeable batch size; 0 if there is none."""
    return facts.loader.batch_size if facts.loader else 0


def _sizes(facts: StepFacts) -> list[int]:
    """Return the sizes to try; ``[0]`` if none can be changed, so that its candidate says why."""
    own = _own_size(facts)
    return [own * 2**doublings for doublings in range(1, _MOST_DOUBLINGS + 1)] if own else [0]


def _why_no_larger(facts: StepFacts, current: Configuration, size: int) -> str | None:
    if facts.loader is None or not size:
        return "no DataLoader has a batch size that could be changed"
    if facts.loader.num_samples < 2 * size:
        return f"the data set has {facts.loader.num_samples} samples"
    return None


def _gain_of_size(facts: StepFacts, size: int) -> float:
    """Return the predicted gain per sample: a larger batch spreads its launches over more."""
    return facts.launch_fraction * (1.0 - _own_size(facts) / size) if size else 0.0


def _change_size(run: configured) -> Count:
    """Give DataLoaders of the old batch size the new one."""
    from breakeven.configure import change_loaders

    old, new = run.wanted.loader_batch_size, run.wanted.new_batch_size
    num_changed = 0

    def change(given: dict[str, Any], loader: DataLoader[Any]) -> None:
        nonlocal num_changed
        if given.get("batch_sampler") is None and given.get("batch_size", 1) == old:
            given["batch_size"] = new
            num_changed += 1

    if old and new:
        change_loaders(run, change)
    return lambda _: num_changed


def _why_not_whole(facts: StepFacts, current: Configuration, value: object) -> str | None:
    loader = facts.loader
    if loader is None:
        return NO_LOADER
    if not loader.has_tensor_rows:
        return f"samples of the data set ({loader.dataset}) are not just rows of tensors"
    if loader.has_batched_fetch:
        return "batches are fetched whole already"
    return None


def _take_whole_batches(run: configured) -> Count:
    from breakeven.configure.loaders import whole_batches

    loaders = run.enter_context(whole_batches())
    return lambda _: loaders.num_applied


def _why_not_resident(facts: StepFacts, current: Configuration, value: object) -> str | None:
    loader = facts.loader
    if loader is None:
        return NO_LOADER
    if loader.dataset != "TensorDataset":
        return f"the data set is a {loader.dataset}, not a TensorDataset"
    if loader.data_bytes > _RESIDENT_BYTES:
        return f"the data set has {format_bytes(loader.data_bytes)}"
    return None


def _keep_on_device(run: configured) -> Count:
    """Copy a ``TensorDataset`` to the CUDA device when a DataLoader gets it.

    Batches are gathered there, each in one call and in the script's order. Worker processes and
    pinned memory serve data in host memory, so a loader with workers is left alone and pinning is
    off.
    """
    import torch
    from torch.utils.data import TensorDataset

    from breakeven.configure import change_loaders
    from breakeven.configure.loaders import row_tensors, without_subsets

    num_loaders = 0

    def change(given: dict[str, Any], loader: DataLoader[Any]) -> None:
        nonlocal num_loaders
        dataset = without_subsets(given["dataset"])
        # A subclass in the script may use its tensors for more than samples.
        tensors = row_tensors(dataset) if type(dataset) is TensorDataset else ()
        is_own_collation = given.get("collate_fn") is not None
        if not tensors or is_own_collation or given.get("num_workers"):
            return
        if not all(tensor.is_cuda for tensor in tensors):
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            if num_bytes > _MAX_DATA_FRACTION * torch.cuda.mem_get_info()[0]:
                return
            run.callback(setattr, dataset, "tensors", tensors)
            dataset.tensors = tuple(tensor.cuda() for tensor in tensors)
        given["pin_memory"] = False
        num_loaders += 1

    if not run.wanted.gathers_batches:
        # Samples on the device are never fetched singly: each would be a launch.
        _take_whole_batches(run)
    change_loaders(run, change)
    return lambda _: num_loaders


def _why_not_pinned(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if facts.loader is None:
        return NO_LOADER
    if facts.loader.pin_memory:
        return "the script pins its batches already"
    if current.keeps_data_on_device:
        return "the data set is on the GPU"
    return None


def _pin_batches(run: configured) -> Count:
    """Pin the batches of DataLoaders, unless the script sets ``pin_memory``."""
    import torch
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from breakeven.configure import change_loaders

    original = _BaseDataLoaderIter.__next__
    num_pinned = 0

    def change(given: dict[str, Any], loader: DataLoader[Any]) -> None:
        nonlocal num_pinned
        if "pin_memory" not in given:
            given["pin_memory"] = True
            num_pinned += 1

    @functools.wraps(original)
    def fetch(iterator: Any) -> Any:
        batch = original(iterator)
        if iterator._pin_memory:
            mark_pinned(batch)
        return batch

    change_loaders(run, change)
    run.replace(_BaseDataLoaderIter, "__next__", fetch)
    run.replace(torch.Tensor, "to", without_waiting(torch.Tensor.to))
    run.replace(torch.Tensor, "cuda", without_waiting(torch.Tensor.cuda))
    return lambda _: num_pinned


def mark_pinned(batch: Any) -> None:
    """Mark the tensors of a batch as pinned."""
    import torch
    from torch.utils._pytree import tree_leaves

    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            setattr(leaf, _MARK, True)


def without_waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a device copy that does not block for tensors that are marked as pinned."""

    @functools.wraps(original)
    def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # A third argument of ``to``, or a boolean second one, already sets ``non_blocking``.
        is_said = "non_blocking" in kwargs or any(isinstance(value, bool) for value in args)
        if not is_said and hasattr(tensor, _MARK):
            kwargs["non_blocking"] = True
        return original(tensor, *args, **kwargs)

    return copy


SETTINGS = (
    Setting(
        name="num_workers",
        meaning="processes of each DataLoader",
        note=", which stay from one epoch to the next",
        numerics=Numerics.EXACT,
        family="workers",
        title=lambda _, count: (
            "1 process that loads batches" if count == 1 else f"{count} processes that load batches"
        ),
        undo="the processes end with the loader",
        apply=_load_in_processes,
        values=lambda facts: sorted({1, min(max(1, facts.num_cores), _MOST_WORKERS)}),
        why_not=_why_no_workers,
        # The gain depends on processors that the loop leaves idle; other processes may use them.
        gain=lambda facts, _: 0.8 * (1.0 - 1.0 / max(1, facts.num_cores)) * facts.fetch_fraction,
        cost_s=lambda _, num_workers: _WORKER_START_S * num_workers,
    ),
    Setting(
        name="loader_batch_size",
        meaning="batch size of the DataLoaders that get another one",
        numerics=Numerics.TRAINING,
        family="batch",
        title="a larger batch size",
        undo=_UNDO_SIZE,
        apply=_change_size,
        values=(),  # set together with new_batch_size
    ),
    Setting(
        name="new_batch_size",
        meaning="the batch size that they get: another training",
        note="; with `--batch-size` alone, compared per sample",
        numerics=Numerics.TRAINING,
        family="batch",
        names={0: "larger-batch"},
        title=lambda facts, size: (
            f"batch size {size} instead of {_own_size(facts)}" if size else "a larger batch size"
        ),
        undo=_UNDO_SIZE,
        apply=_change_size,
        values=_sizes,
        also=lambda facts: {"loader_batch_size": _own_size(facts)},
        why_not=_why_no_larger,
        gain=_gain_of_size,
    ),
    Setting(
        name="gathers_batches",
        meaning="a data set of tensors hands out whole batches",
        note=": those of a `TensorDataset`, or a class of yours whose `__getitem__` only returns "
        "rows of its tensors: `return self.x[i], self.y[i]`",
        numerics=Numerics.EXACT,
        family="gather-batches",
        title="batches taken whole from the tensors of the data set",
        undo="the data set and its DataLoader are as the script made them",
        apply=_take_whole_batches,
        why_not=_why_not_whole,
        # Gathering saves nearly all of the fetching.
        gain=lambda facts, _: 0.9 * facts.fetch_fraction,
    ),
    Setting(
        name="keeps_data_on_device",
        meaning="a data set of tensors is copied to CUDA once",
        note=": a `TensorDataset`, whose batches are taken whole there",
        numerics=Numerics.EXACT,
        family="data-on-device",
        title="the data set kept on the GPU",
        undo="the script's own tensors stay where they are",
        apply=_keep_on_device,
        also=lambda _: {"gathers_batches": True},
        only_on="cuda",
        why_not=_why_not_resident,
        # This saves the fetching and the copy.
        gain=lambda facts, _: 0.95 * facts.fetch_fraction + 0.05,
        cost_s=0.5,
    ),
    Setting(
        name="pins_memory",
        meaning="batches are pinned, and copies to CUDA do not block",
        numerics=Numerics.EXACT,
        family="pin-memory",
        title="pinned batches, copied without waiting",
        undo="loaders and copies are as the script has them",
        apply=_pin_batches,
        only_on="cuda",
        why_not=_why_not_pinned,
        gain=0.05,
        cost_s=0.1,
    ),
)

"""How data arrives: in which processes, how much at once, pinned or kept on the GPU."""

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
# Starting a worker forks the process and imports nothing; this is what the first batch waits.
_WORKER_START_S = 0.3
# Fetching must take at least this part of the step to be worth another process.
_LEAST_FETCH_FRACTION = 0.05
# A batch is doubled this often at most; the knee of the throughput comes earlier on a CPU.
_MOST_DOUBLINGS = 5
_UNDO_SIZE = "the DataLoader is as the script made it"
# A data set that is kept on the device may take this part of its memory; the step needs the rest.
_RESIDENT_BYTES = 1 << 30
# Of the device's free memory: the training itself needs the rest.
_MAX_DATA_FRACTION = 0.5
# On the tensors of a batch that a DataLoader has pinned: nobody else writes into them, so that a
# copy may still run when the script goes on.
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
    """Let DataLoaders load in so many processes, which live from epoch to epoch.

    Only those over a map-style data set whose maker did not say how many. The random numbers that
    the main process draws stay the same.
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

    # Loaders whose workers persist draw the random number that others draw per epoch. Otherwise
    # everything random after the first epoch, the order of samples included, would differ from the
    # run without workers.
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
    """Return the batch size that can be changed; 0 for none."""
    return facts.loader.batch_size if facts.loader else 0


def _sizes(facts: StepFacts) -> list[int]:
    """Return the sizes to try; where none can be changed, one that says so."""
    own = _own_size(facts)
    return [own * 2**doublings for doublings in range(1, _MOST_DOUBLINGS + 1)] if own else [0]


def _why_no_larger(facts: StepFacts, current: Configuration, size: int) -> str | None:
    if facts.loader is None or not size:
        return "no DataLoader has a batch size that could be changed"
    if facts.loader.num_samples < 2 * size:
        return f"the data set has {facts.loader.num_samples} samples"
    return None


def _gain_of_size(facts: StepFacts, size: int) -> float:
    """Return what it saves of a sample's time: launches spread over more."""
    return facts.launch_fraction * (1.0 - _own_size(facts) / size) if size else 0.0


def _change_size(run: configured) -> Count:
    """Let DataLoaders of one batch size get another one."""
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
    """Copy a data set of tensors to the CUDA device when a DataLoader gets it.

    Its batches are taken there, at once and in the order in which the script asks for them. Worker
    processes and pinned memory are for data that are somewhere else, and are left out.
    """
    import torch
    from torch.utils.data import TensorDataset

    from breakeven.configure import change_loaders
    from breakeven.configure.loaders import row_tensors, without_subsets

    num_loaders = 0

    def change(given: dict[str, Any], loader: DataLoader[Any]) -> None:
        nonlocal num_loaders
        dataset = without_subsets(given["dataset"])
        # A class of the script's own may use its tensors for more than samples.
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
        # Samples on the device are never taken one by one: each would be a launch.
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
    """Let DataLoaders pin their batches, unless their maker said whether to."""
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
    """Mark the tensors of a batch as pinned, and nobody else's."""
    import torch
    from torch.utils._pytree import tree_leaves

    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            setattr(leaf, _MARK, True)


def without_waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy to a device that does not block for tensors that are marked."""

    @functools.wraps(original)
    def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # A third argument of ``to``, or a second that is a boolean, says it already.
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
        # By the processors that the loop leaves to others, which may be busy themselves.
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
        values=(),  # goes with the other one
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
        # Nearly all of the fetching.
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
        # Fetching, and the copy as well.
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

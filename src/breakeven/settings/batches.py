"""Where batches are: taken whole, pinned for their copy, or on the GPU with all data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import NO_LOADER, Count, Setting, StepFacts
from breakeven.trace import Configuration
from breakeven.units import format_bytes
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from breakeven.settings.in_effect import configured

# A data set that is kept on the device may take this part of its memory; the step needs the rest.
_RESIDENT_BYTES = 1 << 30
# Of the device's free memory: the training itself needs the rest.
_MAX_DATA_FRACTION = 0.5
# On the tensors of a batch that a DataLoader has pinned: nobody else writes into them, so that a
# copy may still run when the script goes on.
_MARK = "_breakeven_pinned"


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


def _why_not(facts: StepFacts, current: Configuration, value: object) -> str | None:
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
        why_not=_why_not,
        gain=0.05,
        cost_s=0.1,
    ),
)

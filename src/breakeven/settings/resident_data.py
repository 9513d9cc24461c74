"""A data set of tensors taken whole batch by whole batch, or copied to the GPU once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import NO_LOADER, Count, Setting
from breakeven.settings.step_facts import StepFacts
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
)

"""Batches in pinned memory, copied to the GPU while it computes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import NO_LOADER, Count, Setting
from breakeven.settings.step_facts import StepFacts
from breakeven.trace import Configuration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from breakeven.settings.in_effect import configured

# On the tensors of a batch that a DataLoader has pinned: nobody else writes into them, so that a
# copy may still run when the script goes on.
_MARK = "_breakeven_pinned"


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

"""A larger batch: more samples a second, and another training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import Count, Setting
from breakeven.settings.step_facts import StepFacts
from breakeven.trace import Configuration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from breakeven.settings.in_effect import configured

# A batch is doubled this often at most; the knee of the throughput comes earlier on a CPU.
_MOST_DOUBLINGS = 5


def _own_size(facts: StepFacts) -> int:
    """Return the batch size that can be changed; 0 for none."""
    return facts.loader.batch_size if facts.loader else 0


def _sizes(facts: StepFacts) -> list[int]:
    """Return the sizes to try; where none can be changed, one that says so."""
    own = _own_size(facts)
    return [own * 2**doublings for doublings in range(1, _MOST_DOUBLINGS + 1)] if own else [0]


def _why_not(facts: StepFacts, current: Configuration, size: int) -> str | None:
    if facts.loader is None or not size:
        return "no DataLoader has a batch size that could be changed"
    if facts.loader.num_samples < 2 * size:
        return f"the data set has {facts.loader.num_samples} samples"
    return None


def _gain(facts: StepFacts, size: int) -> float:
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


_UNDO = "the DataLoader is as the script made it"
SETTINGS = (
    Setting(
        name="loader_batch_size",
        meaning="batch size of the DataLoaders that get another one",
        numerics=Numerics.TRAINING,
        family="batch",
        title="a larger batch size",
        undo=_UNDO,
        apply=_change_size,
        values=(),  # goes with the other one
    ),
    Setting(
        name="new_batch_size",
        meaning="the batch size that they get: another training",
        note="; with `--batch-size` alone, compared per sample",
        numerics=Numerics.TRAINING,
        family="batch",
        candidate=lambda size: f"batch={size}" if size else "larger-batch",
        title=lambda facts, size: (
            f"batch size {size} instead of {_own_size(facts)}" if size else "a larger batch size"
        ),
        undo=_UNDO,
        apply=_change_size,
        values=_sizes,
        also=lambda facts: {"loader_batch_size": _own_size(facts)},
        why_not=_why_not,
        gain=_gain,
    ),
)

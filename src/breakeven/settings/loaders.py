"""How a DataLoader loads: in other processes, how far ahead, and how much at once."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import NO_LOADER, Count, Setting, StepFacts
from breakeven.trace import Configuration
from breakeven.units import format_percent
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


def _counts(facts: StepFacts) -> list[int]:
    return sorted({1, min(max(1, facts.num_cores), _MOST_WORKERS)})


def _why_not_fetched_elsewhere(facts: StepFacts) -> str | None:
    if facts.fetch_fraction < _LEAST_FETCH_FRACTION:
        return f"fetching takes {format_percent(facts.fetch_fraction)} of the step"
    return None


def _spare_fraction(facts: StepFacts) -> float:
    """Return which part of the processor the training loop leaves to others, at least."""
    return 1.0 - 1.0 / max(1, facts.num_cores)


def _why_not(facts: StepFacts, current: Configuration, num_workers: int) -> str | None:
    if facts.loader is None:
        return NO_LOADER
    if current.gathers_batches:
        return "batches are taken whole, faster than a process could send them"
    if facts.loader.num_workers == num_workers:
        return "that is what the script uses already"
    return _why_not_fetched_elsewhere(facts)


def _why_not_ahead(facts: StepFacts, current: Configuration, num_batches: int) -> str | None:
    if facts.loader is None:
        return NO_LOADER
    if max(current.num_workers, facts.loader.num_workers) < 1:
        return "no processes load batches"
    return _why_not_fetched_elsewhere(facts)


def _load_in_processes(run: configured) -> Count:
    """Let DataLoaders load in so many processes, which live from epoch to epoch.

    Only those over a map-style data set whose maker did not say how many. The random numbers that
    the main process draws stay the same.
    """
    import torch
    from torch.utils.data import DataLoader, IterableDataset
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    from breakeven.configure import ByIdentity, change_loaders

    wanted = run.wanted
    counts = Counter[str]()
    made_persistent = ByIdentity[DataLoader[Any], bool]()

    def change(given: dict[str, Any], loader: DataLoader[Any]) -> None:
        if isinstance(given["dataset"], IterableDataset):
            return
        if wanted.num_workers >= 0 and "num_workers" not in given:
            counts["num_workers"] += 1
            given["num_workers"] = wanted.num_workers
            if wanted.num_workers and "persistent_workers" not in given:
                given["persistent_workers"] = True
                made_persistent[loader] = True
        is_open = given.get("num_workers") and given.get("prefetch_factor") is None
        if wanted.prefetch_factor and is_open:
            counts["prefetch_factor"] += 1
            given["prefetch_factor"] = wanted.prefetch_factor

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
    return counts.__getitem__


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
        values=_counts,
        why_not=_why_not,
        # With cores that may be busy themselves.
        gain=lambda facts, _: 0.8 * _spare_fraction(facts) * facts.fetch_fraction,
        cost_s=lambda _, num_workers: _WORKER_START_S * num_workers,
    ),
    Setting(
        name="prefetch_factor",
        meaning="batches that each of them loads ahead",
        note="; torch's own choice is 2",
        numerics=Numerics.EXACT,
        family="prefetch",
        title=lambda _, num_batches: f"{num_batches} batches loaded ahead by each process",
        undo="the DataLoader is as the script made it",
        apply=_load_in_processes,
        values=(4,),
        why_not=_why_not_ahead,
        # What is left of waiting for processes.
        gain=lambda facts, _: 0.08 * _spare_fraction(facts) * facts.fetch_fraction,
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
        candidate=lambda size: f"batch={size}" if size else "larger-batch",
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
)

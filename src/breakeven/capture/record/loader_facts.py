"""Properties of a DataLoader, the contents of its data set, and the cost of its batches.

A recording loads in the training process if possible: there it sees the fetch of a batch, and no
other work competes with it. A data set that queries its worker would load other data there, or
fail. So its workers stay, and the time of their batches is unknown.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from types import CodeType, FunctionType
from typing import Any

import torch
from msgspec.structs import replace
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Subset,
    TensorDataset,
)
from torch.utils.data._utils import worker as working

from breakeven.capture.location import is_user_file, location_of
from breakeven.capture.record.held_objects import attributes_of, codes_of, elements_of
from breakeven.capture.record.modes import without_modes
from breakeven.configure import has_whole_batches
from breakeven.trace import LoaderFacts, Location

# Indexing a few tensors and joining the samples takes 3-10 µs per sample, and some 150 µs per
# batch; on a busy machine a few times that. Slower fetches do other work.
# Source: torch's `default_collate` of a TensorDataset, torch 2.13, one core of a cloud machine.
_INDEXING_NS = 50_000
_BATCH_NS = 1_000_000

# Calls that a `__getitem__` may contain besides indexing: conversions of the result.
_CONVERSIONS = frozenset({
    "torch", "tensor", "as_tensor", "from_numpy", "Tensor", "FloatTensor", "LongTensor", "np",
    "numpy", "asarray", "float", "int", "long", "half", "double", "to", "type", "item", "dtype",
    "float32", "float64", "int64", "uint8",
})  # fmt: skip
_TRANSFORMS = ("transform", "transforms", "augment", "augmentation", "target_transform")

# Limit on the elements of a list of samples to inspect.
_MAX_ELEMENTS = 100_000


@dataclass(slots=True)
class LoaderRecord:
    """The record of one DataLoader, with the script's own settings.

    Args:
        location: Line of the script that creates it.
        num_workers: Worker processes that the script requests.
        persistent_workers: Whether they would outlive an epoch.
        num_epochs: Number of its iterators.
        wall_ns: Time of each fetch.
        cpu_ns: Processor time of each fetch.
        batch_bytes: Bytes of the tensors in the first batch.
        facts: Constant facts; None before the first batch.
        keeps_workers: Whether its workers stay in a recording.
    """

    location: Location | None
    num_workers: int
    persistent_workers: bool
    num_epochs: int = 0
    wall_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)
    batch_bytes: int = 0
    facts: LoaderFacts | None = None
    keeps_workers: bool = False


def describe_loader(loader: DataLoader[Any], record: LoaderRecord) -> LoaderFacts:
    """Return the facts that are constant across batches."""
    # Find the source of a subset's samples; in a concatenation, take the first part.
    dataset: Any = loader.dataset
    while parts := parts_of(dataset):
        dataset = parts[0]
    is_batched = loader.batch_size is None and loader.batch_sampler is None
    return LoaderFacts(
        location=record.location,
        batch_size=batch_size_of(loader) or 0,
        num_samples=length_of(loader.dataset),
        num_workers=record.num_workers,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=record.persistent_workers,
        num_epochs=0,
        dataset=type(dataset).__name__,
        dataset_location=_class_location(type(dataset)),
        data_bytes=held_bytes(loader.dataset),
        is_indexed=_only_indexes(dataset),
        has_tensor_rows=has_whole_batches(loader),
        has_batched_fetch=(
            is_batched
            or isinstance(loader.sampler, BatchSampler)
            or callable(getattr(type(dataset), "__getitems__", None))
        ),
    )


def batch_size_of(loader: DataLoader[Any]) -> int | None:
    """Return the number of samples in a batch, if the loader or its batch sampler has one."""
    size = loader.batch_size or attributes_of(loader.batch_sampler).get("batch_size")
    return size if isinstance(size, int) else None


def join_records(records: Iterable[LoaderRecord], *, is_timed: bool) -> tuple[LoaderFacts, ...]:
    """Return one entry per group of like loaders created at one line, the most used first.

    Args:
        records: Records of all loaders that gave batches.
        is_timed: Whether fetches ran at full speed, so that their time is meaningful.
    """
    joined: dict[LoaderFacts, list[LoaderRecord]] = {}
    for record in records:
        if record.facts is not None:
            joined.setdefault(record.facts, []).append(record)
    groups = sorted(joined.values(), key=lambda group: -sum(len(one.wall_ns) for one in group))
    return tuple(_facts_of(group, is_timed=is_timed) for group in groups)


def _facts_of(group: list[LoaderRecord], *, is_timed: bool) -> LoaderFacts:
    facts = group[-1].facts
    assert facts is not None
    is_own = facts.dataset_location is not None
    is_timed = is_timed and not any(record.keeps_workers for record in group)
    # Skip the very first fetch: it is recorded operator by operator, and fills caches.
    wall_ns = [value for record in group for value in record.wall_ns]
    cpu_ns = [value for record in group for value in record.cpu_ns]
    is_quick = min(cpu_ns) < _BATCH_NS + _INDEXING_NS * max(1, facts.batch_size)
    return replace(
        facts,
        num_epochs=sum(record.num_epochs for record in group),
        # A library's data set is known to index; the user's own may index slow storage.
        is_indexed=facts.is_indexed and (is_quick or not is_own),
        batch_bytes=max(record.batch_bytes for record in group),
        fetch_ns=round(median(wall_ns[1:] or wall_ns)) if is_timed else 0,
        fetch_cpu_ns=round(median(cpu_ns[1:] or cpu_ns)) if is_timed else 0,
    )


def held_bytes(dataset: Any) -> int:
    """Return the bytes of tensors and arrays in a data set's own attributes.

    Lists, tuples and dicts of them count, one level deep; a subset counts its source.
    """
    known: set[int] = set()

    def count(value: Any, *, is_nested: bool = False) -> int:
        if id(value) in known:
            return 0
        known.add(id(value))
        if isinstance(value, torch.Tensor):
            return value.numel() * value.element_size()
        if type(value).__module__ == "numpy":
            return int(getattr(value, "nbytes", 0))
        if is_nested or not isinstance(value, (list, tuple, dict)):
            return 0
        return sum(count(item, is_nested=True) for item in elements_of(value, _MAX_ELEMENTS))

    def held_by(source: Any) -> int:
        if parts := parts_of(source):
            return sum(map(held_by, parts))
        if isinstance(source, (list, tuple)):
            return sum(count(sample) for sample in elements_of(source, _MAX_ELEMENTS))
        return sum(count(value) for value in attributes_of(source).values())

    return held_by(dataset)


def length_of(dataset: Any) -> int:
    """Return the number of samples in a data set; 0 if unknown."""
    if not isinstance(dataset, Sized):
        return 0
    try:
        return len(dataset)
    except Exception:
        return 0


def _only_indexes(dataset: Any) -> bool:
    """Return whether the data set's ``__getitem__`` visibly does nothing but indexing."""
    if isinstance(dataset, TensorDataset):
        return True
    attributes = attributes_of(dataset)
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    if isinstance(dataset, (list, tuple)):
        return held_bytes(dataset) > 0
    has_transform = any(attributes.get(name) is not None for name in _TRANSFORMS)
    if not isinstance(code, CodeType) or has_transform or not held_bytes(dataset):
        return False
    return set(code.co_names) <= _CONVERSIONS | attributes.keys()


def _class_location(kind: type) -> Location | None:
    """Return the user's line that defines ``kind``; None for a library's type."""
    codes = [
        code
        for code in (getattr(value, "__code__", None) for value in vars(kind).values())
        if isinstance(code, CodeType) and is_user_file(code.co_filename)
    ]
    if not codes:
        return None
    first = min(codes, key=lambda code: code.co_firstlineno)
    line = first.co_firstlineno
    # Without its source, keep the line of its first method.
    with suppress(OSError, TypeError):
        line = inspect.getsourcelines(kind)[1]
    return location_of(first.co_filename, line, kind.__name__)


# Names by which a data set queries its worker.
_QUESTIONS = frozenset({"get_worker_info", "_worker_info", "WorkerInfo"})

_original_loop = working._worker_loop


def needs_workers(loader: Any) -> bool:
    """Return whether a DataLoader's code queries the worker process in which it runs.

    It does if a function of the script prepares the workers, or if the script's data set, sampler
    or collation names them.
    """
    items: list[Any] = [
        loader.dataset, loader.collate_fn, loader.sampler, loader.batch_sampler,
        getattr(loader.collate_fn, "func", None),  # of functools.partial
    ]  # fmt: skip
    for item in items:
        items += parts_of(item)
    methods = [
        value for item in items for kind in type(item).__mro__ for value in vars(kind).values()
    ]
    return loader.worker_init_fn is not None or any(
        not _QUESTIONS.isdisjoint(code.co_names)
        for function in (*items, *methods)
        if isinstance(function, FunctionType) and is_user_file(function.__code__.co_filename)
        for code in codes_of(function.__code__)
    )


def load_unobserved(*args: Any) -> None:
    """Load in a worker process, which a recording must not observe."""
    with without_modes():
        _original_loop(*args)


def parts_of(dataset: Any) -> list[Any]:
    """Return the data sets from which a subset or a concatenation takes samples."""
    held = attributes_of(dataset)
    if isinstance(dataset, Subset):
        return [part for part in (held.get("dataset"),) if part is not None]
    return list(held.get("datasets", ())) if isinstance(dataset, ConcatDataset) else []

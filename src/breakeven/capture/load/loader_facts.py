"""What a DataLoader is, what its data set holds, and what its batches cost."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field
from statistics import median
from types import CodeType
from typing import Any

import torch
from msgspec.structs import replace
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from breakeven.capture.load.loader_workers import WorkTimes, parts_of
from breakeven.capture.location import is_user_file, location_of
from breakeven.capture.record.held_objects import attributes_of, elements_of
from breakeven.configure import has_whole_batches
from breakeven.trace import LoaderFacts, Location

# Indexing a few tensors and putting the samples together takes 3-10 µs a sample, and some 150 µs
# for the batch itself; on a busy machine a few times that. What is slower does something else.
# Source: torch's `default_collate` of a TensorDataset, torch 2.13, one core of a cloud machine.
_INDEXING_NS = 50_000
_BATCH_NS = 1_000_000

# What a `__getitem__` that only indexes may call besides: conversions of what it found.
_CONVERSIONS = frozenset({
    "torch", "tensor", "as_tensor", "from_numpy", "Tensor", "FloatTensor", "LongTensor", "np",
    "numpy", "asarray", "float", "int", "long", "half", "double", "to", "type", "item", "dtype",
    "float32", "float64", "int64", "uint8",
})  # fmt: skip
_TRANSFORMS = ("transform", "transforms", "augment", "augmentation", "target_transform")

# Elements of a list of samples that are looked at.
_MAX_ELEMENTS = 100_000


@dataclass(slots=True)
class LoaderRecord:
    """What was seen of one DataLoader, as the script asked for it.

    Args:
        location: Where the script makes it.
        num_workers: Worker processes that it asked for.
        persistent_workers: Whether they were to outlive an epoch.
        num_epochs: Iterators made of it.
        wall_ns: Time of each fetch.
        cpu_ns: Processor time of each fetch.
        batch_bytes: Tensors of the first batch.
        facts: What does not change; None before the first batch.
        work: What these take for a batch.
    """

    location: Location | None
    num_workers: int
    persistent_workers: bool
    num_epochs: int = 0
    wall_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)
    batch_bytes: int = 0
    facts: LoaderFacts | None = None
    work: WorkTimes | None = None


def describe_loader(loader: DataLoader[Any], record: LoaderRecord) -> LoaderFacts:
    """Return what does not change from batch to batch."""
    dataset = _innermost(loader.dataset)
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
    """Return the samples of a batch, where the loader or its batch sampler says."""
    size = loader.batch_size or attributes_of(loader.batch_sampler).get("batch_size")
    return size if isinstance(size, int) else None


def join_records(records: Iterable[LoaderRecord], *, is_timed: bool) -> tuple[LoaderFacts, ...]:
    """Return one entry for the loaders that are alike and made at one line, the most used first.

    Args:
        records: Of all loaders that batches were taken from.
        is_timed: Whether fetches ran at full speed, so that their time says something.
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
    # The first fetch of all is recorded operator by operator, and fills caches.
    wall_ns = [value for record in group for value in record.wall_ns]
    cpu_ns = [value for record in group for value in record.cpu_ns]
    is_quick = min(cpu_ns) < _BATCH_NS + _INDEXING_NS * max(1, facts.batch_size)
    return replace(
        facts,
        num_epochs=sum(record.num_epochs for record in group),
        # What a library's data set does is known; one's own may index what is slow to index.
        is_indexed=facts.is_indexed and (is_quick or not is_own),
        batch_bytes=max(record.batch_bytes for record in group),
        fetch_ns=round(median(wall_ns[1:] or wall_ns)) if is_timed else 0,
        fetch_cpu_ns=round(median(cpu_ns[1:] or cpu_ns)) if is_timed else 0,
    )


def held_bytes(dataset: Any) -> int:
    """Return the bytes of tensors and arrays among a data set's own attributes.

    Lists, tuples and dicts of them count, one level deep; a subset holds what its source holds.
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


def _innermost(dataset: Any) -> Any:
    """Return the data set that a subset, or a concatenation of one kind, takes samples from."""
    while parts := parts_of(dataset):
        dataset = parts[0]
    return dataset


def length_of(dataset: Any) -> int:
    """Return the samples of a data set; 0 where it does not say."""
    if not isinstance(dataset, Sized):
        return 0
    try:
        return len(dataset)
    except Exception:
        return 0


def _only_indexes(dataset: Any) -> bool:
    """Return whether nothing but indexing shows in the data set's ``__getitem__``."""
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
    line = _class_line(first.co_filename, kind.__name__, first.co_firstlineno)
    return location_of(first.co_filename, line, kind.__name__)


def _class_line(file: str, name: str, inside: int) -> int:
    """Return the line of ``class name`` around the line ``inside``; that line where not found."""
    try:
        with tokenize.open(file) as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return inside
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and node.name == name
        and node.lineno <= inside <= (node.end_lineno or inside)
    ]
    return max(lines, default=inside)

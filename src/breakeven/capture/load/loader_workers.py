"""Worker processes of a DataLoader that stay in a recorded run, and how long their work takes.

A recording loads in the training process where it can: there the fetch of a batch is seen, and
nothing competes with it. A data set that asks which worker it is in would load something else, or
refuse; its workers stay, and note in shared memory what a batch takes them.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
from collections.abc import Callable, Iterator
from time import perf_counter_ns, thread_time_ns
from types import FunctionType, MethodType
from typing import Any

from torch.utils.data import ConcatDataset, Subset, get_worker_info
from torch.utils.data._utils import fetch as fetching
from torch.utils.data._utils import worker as working

from breakeven.capture.location import is_user_file
from breakeven.capture.record.held_objects import attributes_of, codes_of
from breakeven.capture.record.modes import without_modes

# How a data set asks for it.
_QUESTIONS = frozenset({"get_worker_info", "_worker_info", "WorkerInfo"})
# Of a worker in the shared memory: batches, their time and their processor time.
_NUM_SLOTS = 3

_original_loop = working._worker_loop


def needs_workers(loader: Any) -> bool:
    """Return whether what a DataLoader runs asks for the worker process that it is in.

    It does if workers are prepared by a function of the script, or if the script's code of the
    data set, the sampler or the collation, or a function that this calls, says so by name.
    """
    if loader.worker_init_fn is not None:
        return True
    seen: set[int] = set()
    asked = (loader.dataset, loader.collate_fn, loader.sampler, loader.batch_sampler)
    return any(_asks(function, seen) for item in asked for function in _functions_of(item))


class WorkTimes:
    """What the workers of one iterator take for a batch.

    Args:
        num_workers: How many there are.
        context: Of multiprocessing, which makes them; None for the default.
    """

    def __init__(self, num_workers: int, context: Any = None) -> None:
        maker: Any = context or multiprocessing.get_context()
        self._slots = maker.RawArray("q", _NUM_SLOTS * num_workers)

    def loop(self) -> Callable[..., None]:
        """Return what a worker runs in place of torch's own loop."""
        return functools.partial(_work, self._slots)

    def means(self) -> tuple[int, int]:
        """Return time and processor time of a batch, in nanoseconds; zeros while there is none."""
        num_batches = sum(self._slots[0::_NUM_SLOTS])
        wall_ns, cpu_ns = sum(self._slots[1::_NUM_SLOTS]), sum(self._slots[2::_NUM_SLOTS])
        return (wall_ns // num_batches, cpu_ns // num_batches) if num_batches else (0, 0)


def _work(slots: Any, *args: Any) -> None:
    """Load in a worker process, which a recording must not follow into."""
    for kind in (fetching._MapDatasetFetcher, fetching._IterableDatasetFetcher):
        kind.fetch = _timed(kind.fetch, slots)
    with without_modes():
        _original_loop(*args)


def _timed(original: Callable[..., Any], slots: Any) -> Callable[..., Any]:
    num_batches = 0

    def fetch(fetcher: Any, indices: Any) -> Any:
        nonlocal num_batches
        started_ns, started_cpu_ns = perf_counter_ns(), thread_time_ns()
        batch = original(fetcher, indices)
        took = (perf_counter_ns() - started_ns, thread_time_ns() - started_cpu_ns)
        worker = get_worker_info()
        assert worker is not None
        first = worker.id * _NUM_SLOTS
        # The first fills caches: it counts until there is another.
        before = slots[first : first + _NUM_SLOTS] if num_batches > 1 else (0, 0, 0)
        slots[first : first + _NUM_SLOTS] = [
            old + new for old, new in zip(before, (1, *took), strict=True)
        ]
        num_batches += 1
        return batch

    return fetch


def parts_of(dataset: Any) -> list[Any]:
    """Return the data sets that a subset or a concatenation takes samples from."""
    held = attributes_of(dataset)
    if isinstance(dataset, Subset):
        return [part for part in (held.get("dataset"),) if part is not None]
    return list(held.get("datasets", ())) if isinstance(dataset, ConcatDataset) else []


def _functions_of(item: Any) -> Iterator[FunctionType]:
    """Yield the script's functions that an object runs, and those of the data sets in it."""
    if isinstance(item, functools.partial):
        item = item.func
    for part in parts_of(item):
        yield from _functions_of(part)
    kind = type(item)
    values: list[Any] = [value for base in kind.__mro__ for value in vars(base).values()]
    if isinstance(item, (FunctionType, MethodType)):
        values = [item]
    for value in values:
        inner = value
        if isinstance(value, (staticmethod, classmethod, MethodType)):
            inner = value.__func__
        elif isinstance(value, property):
            inner = value.fget
        if isinstance(inner, FunctionType):
            unwrapped = inspect.unwrap(inner)
            # A class that was given to `functools.wraps` need not lead to a function.
            if isinstance(unwrapped, FunctionType):
                yield unwrapped


def _asks(function: FunctionType, seen: set[int]) -> bool:
    if id(function) in seen or not is_user_file(function.__code__.co_filename):
        return False
    seen.add(id(function))
    names = {name for code in codes_of(function.__code__) for name in code.co_names}
    if not names.isdisjoint(_QUESTIONS):
        return True
    called = (function.__globals__.get(name) for name in names)
    return any(_asks(each, seen) for each in called if isinstance(each, FunctionType))

"""The training loop's use of its DataLoaders, and its time waiting for them."""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter, UserDict
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from copy import deepcopy
from operator import sub
from time import perf_counter_ns, sleep, thread_time_ns
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data._utils import worker as working
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from breakeven.capture.location import caller_of_constructor, is_user_file, locate
from breakeven.capture.messages import LoaderUse
from breakeven.capture.record.held_objects import elements_of
from breakeven.capture.record.loader_facts import (
    LoaderRecord,
    batch_size_of,
    describe_loader,
    join_records,
    length_of,
    load_unobserved,
    needs_workers,
)
from breakeven.capture.record.modes import without_modes
from breakeven.configure import ByIdentity, Patches
from breakeven.trace import LoaderFacts, Location
from breakeven.units import NS_PER_S

# Usual time, and limit, for timing a loader alone.
_ALONE_NS = 500_000_000
_ALONE_LIMIT_S = 8.0
# Samples for its pace: rounds of its workers, or batches of an epoch.
_ROUNDS, _LEAST_BATCHES = 2, 3
# Number of parts into which that time is divided.
_NUM_PARTS = 5
# Limit on waiting for workers to fill their queue.
_LONGEST_REST_S = 1.0


_WITHOUT_WORKERS = {
    "num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "timeout": 0,
    "_DataLoader__multiprocessing_context": None,
}  # fmt: skip


class LoaderWatch(Patches):
    """Times every fetch of a batch; can set a batch size and keep loading in this process.

    Args:
        old_batch_size: DataLoaders of this batch size get the new one; 0 for none.
        new_batch_size: The new batch size.
        in_process: Load without worker processes, so that the recording sees the fetch; a data set
            that queries its worker keeps them.
        around_fetch: Context manager entered around every fetch; called with the loader.
        on_batch: Called with the loader, its batch and the time of the fetch in nanoseconds.
    """

    def __init__(
        self, *, old_batch_size: int = 0, new_batch_size: int = 0, in_process: bool = False,
        around_fetch: Callable[[Any], Any] = nullcontext,
        on_batch: Callable[[DataLoader[Any], Any, int], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._old_batch_size = old_batch_size
        self._new_batch_size = new_batch_size
        self._in_process = in_process
        self._around_fetch = around_fetch
        self._on_batch = on_batch
        self._records = ByIdentity[DataLoader[Any], LoaderRecord]()
        # Records of the loaders that gave a batch; the loaders may be deleted meanwhile.
        self._used: list[LoaderRecord] = []
        # Since the last step boundary: (loader, time of the fetch).
        self._fetches: list[tuple[Any, int]] = []
        # Iterator of the last batch that worker processes loaded.
        self._last_of_workers: _MultiProcessingDataLoaderIter | None = None
        self._is_epoch_over = False
        # Batches to repeat while workers rest; None while they work.
        self._repeated: ByIdentity[DataLoader[Any], Any] | None = None
        self._next = _BaseDataLoaderIter.__next__
        self._num_alone, self._taking_ns = 0, 0

    def _apply(self) -> None:
        watch = self
        original_init = DataLoader.__init__
        original_iterator_init = _BaseDataLoaderIter.__init__
        original_start = _MultiProcessingDataLoaderIter.__init__
        original_next = _BaseDataLoaderIter.__next__

        @functools.wraps(original_init)
        def initialize(loader: Any, dataset: Any, batch_size: Any = 1, *args: Any, **kwargs: Any):
            if watch._old_batch_size and batch_size == watch._old_batch_size:
                batch_size = watch._new_batch_size
                args, kwargs = _with_enough_samples(dataset, batch_size, args, kwargs)
            original_init(loader, dataset, batch_size, *args, **kwargs)
            if watch._in_process:
                location = watch._location(loader, caller_of_constructor(sys._getframe(1), loader))
                # A trainer copies a loader's settings after its workers were removed.
                is_copy = type(loader) is not DataLoader and not loader.num_workers
                alike = watch._alike(loader) if is_copy else ()
                asked = next((own for _, own in alike if own.num_workers), loader)
                record = watch._records[loader] = _new_record(asked, location)
                record.keeps_workers = loader.num_workers > 0 and needs_workers(loader)
                if not record.keeps_workers:
                    # Update the dictionary: DataLoader guards its attributes.
                    loader.__dict__.update(_WITHOUT_WORKERS)

        def initialize_iterator(iterator: Any, loader: Any) -> None:
            original_iterator_init(iterator, loader)
            iterator._watched_loader = loader
            if watch._in_process:
                watch._record_of(loader).num_epochs += 1

        def start_workers(iterator: Any, loader: Any) -> None:
            with watch._around_fetch(loader):  # workers that fork load as this thread does
                original_start(iterator, loader)

        def fetch(iterator: Any) -> Any:
            loader = vars(iterator).get("_watched_loader")
            if loader is None:  # the iterator began before this watch
                return original_next(iterator)
            started_ns, started_cpu_ns = perf_counter_ns(), thread_time_ns()
            with watch._around_fetch(iterator._watched_loader):
                batch = watch._take(iterator)
            duration_ns = perf_counter_ns() - started_ns
            cpu_ns = thread_time_ns() - started_cpu_ns
            watch._fetches.append((loader, duration_ns))
            if isinstance(iterator, _MultiProcessingDataLoaderIter):
                watch._last_of_workers = iterator
            if watch._in_process:
                watch._note_fetch(loader, batch, duration_ns, cpu_ns)
            watch._on_batch(loader, batch, duration_ns)
            return batch

        self.replace(DataLoader, "__init__", initialize)
        self.replace(_BaseDataLoaderIter, "__init__", initialize_iterator)
        if watch._in_process:
            self.replace(working, "_worker_loop", load_unobserved)
            self.replace(_MultiProcessingDataLoaderIter, "__init__", start_workers)
        self.replace(_BaseDataLoaderIter, "__next__", fetch)

    def _take(self, iterator: Any) -> Any:
        if self._repeated is None or not isinstance(iterator, _MultiProcessingDataLoaderIter):
            return self._next(iterator)
        loader = vars(iterator)["_watched_loader"]
        if loader not in self._repeated:
            self._repeated[loader] = self._next(iterator)
        return deepcopy(self._repeated[loader])  # the script may modify its batch

    def rest(self, batch_ns: float) -> bool:
        """Let workers rest: until `work_on`, their loaders repeat one batch.

        Args:
            batch_ns: Time per batch of the workers.

        Returns:
            Whether they rest; they do not after an epoch whose end the script has not seen.
        """
        iterator = self._last_of_workers
        if not batch_ns or iterator is None or self._is_epoch_over:
            return False
        loader = vars(iterator)["_watched_loader"]
        num_ahead = int(loader.prefetch_factor) * int(loader.num_workers)
        sleep(min(_LONGEST_REST_S, num_ahead * batch_ns / NS_PER_S))
        self._repeated = ByIdentity()
        return True

    def work_on(self) -> None:
        """Resume loading."""
        self._repeated = None

    def time_alone(self) -> tuple[float, float]:
        """Return the time of a batch from the last loader with workers, while nothing else runs.

        It continues the loader's epoch, or begins another one.

        Returns:
            Nanoseconds between batches, and processor time of this process per batch. Both are 0
            without such a loader, if it fails, or if it yields too few batches in time.
        """
        found: list[tuple[float, float]] = []

        def time() -> None:
            with suppress(Exception):  # raised by a worker, or by the script's own iterator
                pace_ns = self._pace()
                if pace_ns:
                    found.append((pace_ns, self._taking_ns / self._num_alone))

        # A loader may wait for a step; then the process ends without this thread.
        thread = threading.Thread(target=time, daemon=True)
        thread.start()
        thread.join(_ALONE_LIMIT_S)
        return found[0] if found else (0.0, 0.0)

    def _pace(self) -> float:
        iterator = self._last_of_workers
        if iterator is None:
            return 0.0
        loader = vars(iterator)["_watched_loader"]
        num_workers = int(loader.num_workers)
        try:
            for _ in range(int(loader.prefetch_factor) * num_workers):  # these may be ready
                self._take_alone(iterator)
            ends_ns = [perf_counter_ns()]
            # Workers that start together finish together: count whole rounds of them.
            while len(ends_ns) <= _ROUNDS or _is_soon(ends_ns[0]):
                for _ in range(num_workers):
                    self._take_alone(iterator)
                ends_ns.append(perf_counter_ns())
            # Other work can only slow parts down: use their lower quartile.
            size = max(_ROUNDS, len(ends_ns) // _NUM_PARTS)
            parts_ns = sorted(map(sub, ends_ns[size:], ends_ns))
            return parts_ns[len(parts_ns) // 4] / (size * num_workers)
        except StopIteration:
            self._is_epoch_over = True
            return self._pace_of_epoch(loader)

    def _pace_of_epoch(self, loader: DataLoader[Any]) -> float:
        """Return the time per batch of a short epoch, including the start of its workers."""
        begun_ns, num_batches = perf_counter_ns(), 0
        iterator = iter(loader)
        if not isinstance(iterator, _MultiProcessingDataLoaderIter):
            return 0.0  # the script's own iterator, around one of torch
        with suppress(StopIteration):
            while num_batches < _LEAST_BATCHES or _is_soon(begun_ns):
                self._take_alone(iterator)
                num_batches += 1
        return (perf_counter_ns() - begun_ns) / num_batches if num_batches else 0.0

    def _take_alone(self, iterator: Any) -> None:
        begun_ns = thread_time_ns()
        self._next(iterator)
        self._taking_ns += thread_time_ns() - begun_ns
        self._num_alone += 1

    def num_workers_of_last_fetch(self) -> int:
        """Return the number of workers that the script set for the loader of the last fetch."""
        return self._record_of(self._fetches[-1][0]).num_workers

    def facts(self, *, is_timed: bool) -> tuple[LoaderFacts, ...]:
        """Return facts about the loaders that gave batches, most used first.

        Args:
            is_timed: Whether fetches ran at full speed, so that their time is meaningful.
        """
        return join_records(list(self._used), is_timed=is_timed)

    def _location(self, loader: Any, maker: FrameType | None) -> Location | None:
        """Return the script's line that creates a loader; for a library's copy, the original's."""
        location = locate(maker)
        if maker is None or is_user_file(maker.f_code.co_filename):
            return location
        own_places = (
            own.location
            for other, own in self._alike(loader)
            if batch_size_of(other) == batch_size_of(loader)
        )
        return next((place for place in own_places if place), location)

    def _alike(self, loader: Any) -> Iterator[tuple[Any, LoaderRecord]]:
        """Return the earlier loaders of the same data, with their records."""
        return (each for each in self._records.items() if each[0].dataset is loader.dataset)

    def _record_of(self, loader: Any) -> LoaderRecord:
        """Return the record of a loader; without one, create a record with no line."""
        record = self._records.get(loader)
        if record is None:
            record = self._records[loader] = _new_record(loader)
        return record

    def _note_fetch(self, loader: Any, batch: Any, wall_ns: int, cpu_ns: int) -> None:
        record = self._record_of(loader)
        record.wall_ns.append(wall_ns)
        record.cpu_ns.append(cpu_ns)
        if record.facts is None:
            self._used.append(record)
            with without_modes():
                record.facts = describe_loader(loader, record)
                record.batch_bytes = sum(
                    tensor.numel() * tensor.element_size() for tensor in tensors_of(batch)
                )

    def end_step(self) -> LoaderUse | None:
        """End a step; return its use of the loader that it used most."""
        fetches, self._fetches = self._fetches, []
        if not fetches:
            return None
        counts = Counter(id(loader) for loader, _ in fetches)
        most_used = counts.most_common(1)[0][0]
        loader = next(loader for loader, _ in fetches if id(loader) == most_used)
        batch_size = batch_size_of(loader)
        if not batch_size:
            return None
        return LoaderUse(
            batch_size=batch_size,
            batches_per_step=counts[most_used],
            num_samples=length_of(loader.dataset),
            num_workers=self._record_of(loader).num_workers,
            wait_ns=sum(duration for _, duration in fetches),
            batches_per_epoch=length_of(loader),
        )


def _new_record(asked: Any, location: Location | None = None) -> LoaderRecord:
    """Return a record with the worker settings of ``asked``, a loader or another record."""
    return LoaderRecord(
        location=location,
        num_workers=int(asked.num_workers),
        persistent_workers=bool(asked.persistent_workers),
    )


def _is_soon(begun_ns: int) -> bool:
    """Return whether the usual time for timing a loader alone has not yet passed."""
    return perf_counter_ns() - begun_ns < _ALONE_NS


def _with_enough_samples(
    dataset: Any, batch_size: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Draw with replacement if the data set has fewer samples than a few new batches."""
    is_own_order = len(args) < 2 and kwargs.get("sampler") is None
    num_samples = length_of(dataset)
    if not num_samples or not is_own_order or num_samples >= 4 * batch_size:
        return args, kwargs
    kwargs = {**kwargs, "shuffle": False}
    kwargs["sampler"] = RandomSampler(dataset, replacement=True, num_samples=16 * batch_size)  # type: ignore[arg-type]
    return (), kwargs


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch, also within containers."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, UserDict):  # such as transformers.BatchEncoding
        batch = vars(batch).get("data", {})
    if not isinstance(batch, dict | list | tuple):
        return []
    return [tensor for value in elements_of(batch) for tensor in tensors_of(value)]

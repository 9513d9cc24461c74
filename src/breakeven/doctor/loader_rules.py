"""Rules about the ``DataLoader`` and the data set behind it."""

from __future__ import annotations

import ast
import math
from typing import ClassVar, final

import msgspec

from breakeven.doctor.loader_costs import (
    HANDOFF_NS,
    MOST_WORKERS,
    Loading,
    fetch_evidence,
    hidden_ns,
    is_in_the_way,
    loadings,
    settings_location,
)
from breakeven.doctor.loader_sample_rules import SAMPLE_RULES
from breakeven.doctor.loader_source import fetch_function, is_plain_indexing
from breakeven.doctor.rule import Case, KnownGain, Occurrence, Rule
from breakeven.doctor.source import is_constant, keyword
from breakeven.simulate import Edit
from breakeven.trace import HostWork, LoaderFacts, Op, Phase
from breakeven.units import format_duration

# Starting and ending one forked worker: 17 to 45 ms with 1, 2 and 4 workers. With spawn, as on
# Windows and macOS, each imports torch again, which takes seconds.
# Source: as that of HANDOFF_NS.
_RESTART_NS, _RESTART_LOW_NS, _RESTART_HIGH_NS = 20e6, 10e6, 100e6
# A shorter epoch than this many restarts is short.
_MIN_RESTART_FRACTION = 0.05

# What the index call that replaces it costs: the call, and a copy at 5 GB/s; an estimate.
_INDEX_CALL_NS, _GATHER_NS_PER_BYTE = 20_000, 0.2

# Hosts of GPUs have at least this many processors, whatever the machine here has.
_FEWEST_CORES = 4


@final
class LoadingInProcess:
    """LOAD001: the data loader works in the training process, and the GPU waits for it.

    What it does:
        Finds a ``DataLoader`` without worker processes whose batches take a tenth of the step or
        more, and a millisecond or more each.

    Why it costs time:
        While the training process collects and transforms samples it issues nothing. The faster
        the GPU, the larger that part of the step.

    Evidence:
        Two to four times faster training with workers in public reports: 3 to 13 steps per second
        on an RTX 3090, 29 to 16 minutes per run with four workers.

    Fix:
        Let workers prepare the next batches while the GPU computes.

        ```python
        loader = DataLoader(images, batch_size=32, shuffle=True)
        ```

        ```python
        loader = DataLoader(
            images, batch_size=32, shuffle=True, num_workers=4, persistent_workers=True
        )
        ```

    Known limits:
        The gain shown shares the work between the workers that keep up with the step, at most
        eight and at most the processors of this machine, and lets half a millisecond per batch
        remain for handing it over. Indexing tensors in memory is LOAD002 instead.
    """

    code: ClassVar[str] = "LOAD001"
    cause: ClassVar[str] = "LOADER_WORKERS0"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each loader."""
        return tuple(
            Occurrence(
                title=f"loading the batch takes {format_duration(one.duration_ns, 2)} of the "
                "training process in every step",
                fix="DataLoader(..., num_workers=4, persistent_workers=True)",
                evidence=fetch_evidence(one),
                location=one.location,
                events=one.events,
                edit=_with_workers(case, one),
            )
            for one in loadings(case)
            if not one.num_workers
            and one.duration_ns >= 2 * HANDOFF_NS * len(one.events)
            and is_in_the_way(case, one)
            and not _is_indexed_by_item(case, one)
            and not _is_one_indexing(case, one)
        )


@final
class LoadingPerItem:
    """LOAD002: tensors in memory are fetched item by item.

    What it does:
        Finds a ``DataLoader`` over tensors in memory (``TensorDataset``, or a data set that only
        indexes) that takes them sample by sample, where this costs a tenth of the step or more.

    Why it costs time:
        Each sample costs 3 to 30 µs of Python, and collating puts together again what lay
        side by side before. One indexing call fetches the whole batch.

    Evidence:
        Loading became 4 to 100 times faster in public reports when whole batches were indexed.

    Fix:
        Index whole batches: shuffle the indices yourself, or let a ``BatchSampler`` be the sampler.

        ```python
        loader = DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True)
        for xb, yb in loader:
            ...
        ```

        ```python
        for rows in torch.randperm(len(x)).split(256):
            xb, yb = x[rows], y[rows]
            ...
        ```

    Known limits:
        The gain shown puts one call of 20 µs and a copy at 5 GB/s in the place of the loader.
    """

    code: ClassVar[str] = "LOAD002"
    cause: ClassVar[str] = "LOADER_PER_ITEM"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each loader."""
        on_host = [
            Occurrence(
                title=f"tensors in memory are fetched item by item, "
                f"{format_duration(one.duration_ns, 2)} in every step",
                fix="index whole batches: for rows in torch.randperm(len(x)).split(batch_size)",
                evidence=fetch_evidence(one),
                location=one.location,
                events=one.events,
                edit=_with_one_indexing(case, one),
            )
            for one in loadings(case)
            if _is_indexed_by_item(case, one) and is_in_the_way(case, one)
        ]
        return (*on_host, *_items_of_device_tensors(case))


@final
class WorkersRestarted:
    """LOAD003: worker processes are started again in every short epoch.

    What it does:
        Finds a ``DataLoader`` with workers, without ``persistent_workers``, that is iterated in
        several epochs of so few steps that starting its workers is a twentieth of them or more.

    Why it costs time:
        Each epoch starts all workers, and waits for the first batch while the GPU is idle; where
        processes are spawned rather than forked, each imports torch again.

    Evidence:
        7.6 to 9.5 steps per second on Windows and 30 % of an epoch elsewhere in public reports;
        one data set took 33 s without workers and 136 s with eight.

    Fix:
        Keep the workers.

        ```python
        loader = DataLoader(data, batch_size=16, num_workers=4)
        ```

        ```python
        loader = DataLoader(data, batch_size=16, num_workers=4, persistent_workers=True)
        ```

    Known limits:
        The gain is not simulated: it takes 20 ms per worker and epoch, as measured on Linux, where
        processes are forked; 10 to 100 ms are its interval. It is of the time per step with the
        epochs' starts spread over their steps.
    """

    code: ClassVar[str] = "LOAD003"
    cause: ClassVar[str] = "LOADER_RESPAWN"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each loader."""
        found: list[Occurrence] = []
        for loader in case.facts.loaders:
            if not loader.num_workers or loader.persistent_workers or not loader.batch_size:
                continue
            num_steps = math.ceil(loader.num_samples / loader.batch_size)
            if not num_steps or not _has_several_epochs(case, loader):
                continue
            epoch_ns = num_steps * case.prediction.estimate.value_ns
            shares = [
                loader.num_workers * each_ns / (loader.num_workers * each_ns + epoch_ns)
                for each_ns in (_RESTART_NS, _RESTART_LOW_NS, _RESTART_HIGH_NS)
            ]
            if shares[0] < _MIN_RESTART_FRACTION:
                continue
            found.append(
                Occurrence(
                    title=f"{loader.num_workers} workers are started again every {num_steps} steps",
                    fix="DataLoader(..., persistent_workers=True), or no workers for small data",
                    evidence=f"num_workers={loader.num_workers} without persistent_workers, "
                    f"{loader.num_samples} samples in batches of {loader.batch_size}",
                    location=settings_location(case, loader),
                    share_fraction=shares[0],
                    gain=KnownGain(
                        fraction=shares[0], low_fraction=shares[1], high_fraction=shares[2]
                    ),
                )
            )
        return tuple(found)


@final
class TooManyWorkers:
    """LOAD004: the data loader has more workers than there are processors.

    What it does:
        Finds a ``DataLoader`` with more worker processes than the machine has processors; at least
        four are assumed, for the host of a GPU is rarely smaller.

    Why it costs time:
        Workers then take turns with each other and with the training process, which issues the
        work of the GPU. Each also holds its copy of Python, torch and the prefetched batches.

    Evidence:
        104 workers on 23 processors froze, and 48 were slower than 24, in public reports. torch
        warns of it.

    Fix:
        Two to eight workers; measure before taking more.

        ```python
        loader = DataLoader(data, batch_size=64, num_workers=64)
        ```

        ```python
        loader = DataLoader(data, batch_size=64, num_workers=min(8, os.cpu_count() or 1))
        ```

    Known limits:
        No gain is shown: how much the workers are in each other's way is not simulated. The
        machine that trains may have more processors than this one.
    """

    code: ClassVar[str] = "LOAD004"
    cause: ClassVar[str] = "LOADER_TOO_MANY"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each loader."""
        cores = case.facts.num_cores
        return tuple(
            Occurrence(
                title=f"{loader.num_workers} worker processes on {cores} processors",
                fix="DataLoader(..., num_workers=min(8, os.cpu_count() or 1))",
                evidence=f"num_workers={loader.num_workers}; the process may use {cores} "
                "processors here",
                location=settings_location(case, loader),
            )
            for loader in case.facts.loaders
            if cores and loader.num_workers > max(cores, _FEWEST_CORES)
        )


def _is_indexed_by_item(case: Case, one: Loading) -> bool:
    """Return whether samples in memory are indexed one by one."""
    loader = one.loader
    if loader is None or loader.has_batched_fetch or not loader.data_bytes:
        return False
    return _is_indexed(case, loader)


def _is_one_indexing(case: Case, one: Loading) -> bool:
    """Return whether a batch is one indexing, which no worker does faster."""
    loader = one.loader
    return loader is not None and loader.has_batched_fetch and _is_indexed(case, loader)


def _is_indexed(case: Case, loader: LoaderFacts) -> bool:
    found = fetch_function(case, loader)
    return loader.is_indexed or (found is not None and is_plain_indexing(found[1]))


def _with_workers(case: Case, one: Loading) -> Edit:
    """Return the step with as many workers as hide the loading, or as there can be."""
    most = min(MOST_WORKERS, max(2, case.facts.num_cores or MOST_WORKERS))
    wanted = math.ceil(one.duration_ns / max(1.0, hidden_ns(case, one)))
    num_workers = min(most, max(2, wanted))
    replaced: dict[int, tuple[HostWork, ...]] = {}
    for index in one.events:
        event = case.trace.events[index]
        assert isinstance(event, HostWork)
        replaced[index] = (
            msgspec.structs.replace(event, num_workers=num_workers),
            msgspec.structs.replace(event, duration_ns=HANDOFF_NS),
        )
    return Edit(replaced=replaced)


def _with_one_indexing(case: Case, one: Loading) -> Edit:
    num_bytes = one.loader.batch_bytes if one.loader else 0
    duration_ns = round(_INDEX_CALL_NS + _GATHER_NS_PER_BYTE * num_bytes)
    replaced: dict[int, tuple[HostWork, ...]] = {}
    for index in one.events:
        event = case.trace.events[index]
        assert isinstance(event, HostWork)
        shorter_ns = min(event.duration_ns, duration_ns)
        replaced[index] = (msgspec.structs.replace(event, duration_ns=shorter_ns, num_workers=0),)
    return Edit(replaced=replaced)


def _items_of_device_tensors(case: Case) -> tuple[Occurrence, ...]:
    """Return the loader that takes tensors of the device item by item, an operator for each."""
    fetched = tuple(
        index
        for index, event in enumerate(case.trace.events)
        if isinstance(event, Op) and event.phase is Phase.DATA and not event.is_on_host
    )
    loader = next((one for one in case.facts.loaders if not one.has_batched_fetch), None)
    if loader is None or not 1 < loader.batch_size <= len(fetched):
        return ()
    # One operator for each tensor of the batch remains; a pair of tensors is usual.
    return (
        Occurrence(
            title=f"tensors on the GPU are fetched item by item, {len(fetched)} operators in "
            "every step",
            fix="index whole batches: for rows in torch.randperm(len(x)).split(batch_size)",
            evidence=f"{len(fetched)} operators fetch a batch of {loader.batch_size}",
            location=settings_location(case, loader),
            events=fetched,
            edit=Edit(replaced=dict.fromkeys(fetched[2:], ())),
        ),
    )


def _has_several_epochs(case: Case, loader: LoaderFacts) -> bool:
    if loader.num_epochs > 1:
        return True
    for source in case.sources:
        for name in ("max_epochs", "num_train_epochs"):
            for call in source.calls("Trainer", "TrainingArguments"):
                value = keyword(call, name)
                if value is not None:
                    return not is_constant(value, 1)
        for loop in source.nodes(ast.For):
            assert isinstance(loop, ast.For)
            is_once = isinstance(loop.iter, ast.Call) and any(
                is_constant(argument, 1) for argument in loop.iter.args[:1]
            )
            if "epoch" in ast.unparse(loop.target).lower() and not is_once:
                return True
    return False


LOADER_RULES: tuple[Rule, ...] = (
    LoadingInProcess(),
    LoadingPerItem(),
    WorkersRestarted(),
    TooManyWorkers(),
    *SAMPLE_RULES,
)

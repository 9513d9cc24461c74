"""LOAD: the cost of each ``DataLoader`` for the step, and of its data set for one sample."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.advise.rule import KnownGain, Match, Matches, RuleInput, changed, rule, without
from breakeven.simulate import Bound, Edit
from breakeven.source import (
    COMPREHENSIONS,
    LOOP_STATEMENTS,
    SourceFile,
    dotted_name,
    is_constant,
    last_name,
    methods_of,
    nodes_in,
)
from breakeven.trace import HostWork, LoaderFacts, Location, Phase
from breakeven.units import format_duration, format_percent

# Below this fraction of a step, loading is not worth a change.
_MIN_SHARE_FRACTION = 0.1

# Minimum time of the training process to take a batch from a worker.
# Source: measured with torch 2.13 on two shared x86-64 cores, batches of 10 KB and of 800 KB.
HANDOFF_NS = 500_000

# Workers that a GPU machine usually supports; more are rare, as are reports that more helped.
MOST_WORKERS = 8
_FETCHES = ("__getitem__", "__getitems__", "__iter__", "__next__")

# Calls that open or parse a file. Image readers are left out: decoding costs more.
_READERS = frozenset({
    "open", "load", "loadtxt", "genfromtxt", "fromfile", "read_csv", "read_parquet", "read_json",
    "read_bytes", "read_text", "File", "urlopen", "getfo", "memmap", "ZipFile", "loadmat",
})  # fmt: skip
_READING_MODULES = frozenset({
    "np", "numpy", "torch", "pd", "pandas", "h5py", "zarr", "json", "pickle", "io", "gzip",
    "zipfile", "sio", "scipy", "requests", "urllib",
})  # fmt: skip
_METHOD_READERS = frozenset({"read_bytes", "read_text", "open"})

# Parts of names of calls that are slow for one sample, in any library.
_HEAVY = (
    "resize", "interpolate", "rotat", "affine", "warp", "perspective", "grid_sample", "crop",
    "blur", "filter", "convolve", "fft", "stft", "spectrogram", "mfcc", "resample", "decompress",
    "decode", "imread", "loadtxt", "read_csv", "tokeniz", "encode", "transform", "augment",
    "zoom", "elastic", "jitter", "parse", "finditer", "sort", "svd", "inv",
)  # fmt: skip

# Indexers that return a row of a pandas table, which is slow.
_ROWS = frozenset({"iloc", "loc", "iat", "at"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The cost of one loader for the step.

    Args:
        case: The step.
        loader: Facts about the loader; None if unknown.
        events: Positions of its fetches.
        location: Line that makes the loader, or else takes the batch.
        duration_ns: Time of all fetches of a step in one process.
        num_workers: Worker processes.
    """

    case: RuleInput
    loader: LoaderFacts | None
    events: tuple[int, ...]
    location: Location | None
    duration_ns: float
    num_workers: int

    @property
    def sample_ns(self) -> float:
        """Return the time of one sample; 0 if the batch size is unknown."""
        samples = self.loader.batch_size * len(self.events) if self.loader else 0
        return self.duration_ns / samples if samples else 0.0

    @property
    def cpu_ns(self) -> float:
        """Return the processor time of all fetches of a step; the whole time if that is unknown."""
        if self.loader is None or not self.loader.fetch_cpu_ns:
            return self.duration_ns
        return min(self.duration_ns, float(self.loader.fetch_cpu_ns * len(self.events)))

    @property
    def cpu_fraction(self) -> float:
        """Return the fraction of the time in which the processor works instead of waiting."""
        if self.loader is None or not self.loader.fetch_ns or not self.loader.fetch_cpu_ns:
            return 1.0
        return min(1.0, self.loader.fetch_cpu_ns / self.loader.fetch_ns)

    @property
    def hidden_ns(self) -> float:
        """Return the time of the step without loading."""
        if self.num_workers:
            return max(self.case.prediction.host_ns, self.case.prediction.device_busy_ns)
        return max(0.0, self.case.step_ns - self.duration_ns)

    @property
    def is_in_the_way(self) -> bool:
        """Return whether the step would be at least a tenth shorter without loading."""
        if not self.num_workers:
            return self.duration_ns >= _MIN_SHARE_FRACTION * self.case.step_ns
        # A step limited by the loader is as long as one worker's share of a batch.
        share_ns = self.duration_ns / self.num_workers
        return self.hidden_ns > 0 and share_ns >= 0.9 * self.case.step_ns

    @property
    def is_stream(self) -> bool:
        """Return whether samples are generated without end, so that storing them is impossible."""
        return self.loader is not None and not self.loader.num_samples

    @property
    def is_short(self) -> bool:
        """Return whether a batch takes hardly longer than its transfer from a worker."""
        return self.duration_ns < 2 * HANDOFF_NS * len(self.events)

    @property
    def is_indexed_by_item(self) -> bool:
        """Return whether samples in memory are indexed one by one."""
        return (
            self.loader is not None
            and not self.loader.has_batched_fetch
            and self.loader.data_bytes > 0
            and self.loader.is_indexed
        )

    @property
    def evidence(self) -> str:
        """Return the time of fetching and its data set, in words."""
        taking = f"fetching takes {format_duration(self.duration_ns, 2)}"
        workers = f"{self.num_workers or 'no'} workers"
        if self.loader is None:
            return f"{taking} with {workers}"
        sample = f", {format_duration(self.sample_ns, 2)} a sample" if self.sample_ns else ""
        return f"{self.loader.dataset} with {workers}: {taking}{sample}"

    def line_in_data_set(
        self, find: Callable[[SourceFile, ast.FunctionDef], Location | None]
    ) -> Location | None:
        """Return a line of the data set's own source, or else the loader's line."""
        found = fetch_function(self.case, self.loader) if self.loader is not None else None
        return (find(*found) if found is not None else None) or self.location


def loadings(case: RuleInput) -> Iterator[Loading]:
    """Yield the cost of each loader for the step."""
    groups: dict[int, dict[int, HostWork]] = {}
    for index, work in case.each(HostWork):
        if work.kind == "data":
            groups.setdefault(work.num_workers, {})[index] = work
    for num_workers, fetches in groups.items():
        # The most used loader comes first; a step takes its batch from one of them.
        loaders = (one for one in case.facts.loaders if one.num_workers == num_workers)
        loader = next(loaders, None)
        made_at = loader.location if loader is not None else None
        yield Loading(
            case=case,
            loader=loader,
            events=tuple(fetches),
            location=made_at or next(iter(fetches.values())).location,
            duration_ns=sum(work.duration_ns for work in fetches.values()),
            num_workers=num_workers,
        )


def fetch_function(
    case: RuleInput, loader: LoaderFacts
) -> tuple[SourceFile, ast.FunctionDef] | None:
    """Return the method of the user's data set that yields a sample; None if there is none."""
    source = case.sources.find(loader.dataset_location)
    for node in source.nodes(ast.ClassDef) if source else ():
        methods = methods_of(node) if node.name == loader.dataset else {}
        for name in _FETCHES:
            if source is not None and name in methods:
                return source, methods[name]
    return None


def line_that_reads(source: SourceFile, function: ast.FunctionDef) -> Location | None:
    """Return the line that reads a file for each sample; None if there is none."""
    calls = (c for scope in _with_helpers(source, function) for c in nodes_in(scope, ast.Call))
    return next((source.location(call) for call in calls if _reads(call)), None)


def heaviest_line(source: SourceFile, function: ast.FunctionDef) -> Location:
    """Return the line that probably takes most of the time of a sample.

    A Python loop ranks above a call known to be slow, which ranks above any other: the source alone
    shows no more.
    """
    heaviest, most = function, 0
    for scope in _with_helpers(source, function):
        for node in ast.walk(scope):
            name = last_name(node).lower() if isinstance(node, ast.Call) else ""
            weight = 2 if any(part in name for part in _HEAVY) else 0
            if isinstance(node, (*LOOP_STATEMENTS, *COMPREHENSIONS)):
                weight = 3 if any(nodes_in(node, ast.Call)) else 1
            elif isinstance(node, ast.Subscript) and last_name(node.value) in _ROWS:
                weight = 2
            if weight > most:
                heaviest, most = node, weight
    return source.location(heaviest)


def _reads(call: ast.Call) -> bool:
    module, _, name = dotted_name(call.func).rpartition(".")
    if isinstance(call.func, ast.Name):
        return name == "open"
    if name in _METHOD_READERS and module:
        # `Image.open` is left to the rule about transforms.
        return module.rpartition(".")[2] not in {"Image", "webbrowser"}
    return name in _READERS and module.partition(".")[0] in _READING_MODULES


def _with_helpers(source: SourceFile, function: ast.FunctionDef) -> Iterator[ast.FunctionDef]:
    """Yield a method and the functions of its file that it calls, one level deep."""
    yield function
    defined = {node.name: node for node in source.nodes(ast.FunctionDef)}
    for name in sorted({dotted_name(call.func) for call in nodes_in(function, ast.Call)}):
        target = defined.get(name.removeprefix("self."))
        if target is not None and target is not function:
            yield target


@rule("LOAD001", "LOADER_WORKERS0")
def no_workers(case: RuleInput) -> Matches:
    for one in loadings(case):
        if one.num_workers or one.is_short or not one.is_in_the_way:
            continue
        # Workers do not speed up one indexing call; LOAD002 reports indexing sample by sample.
        loader = one.loader
        is_batched = loader is not None and loader.has_batched_fetch and loader.is_indexed
        if one.is_indexed_by_item or is_batched:
            continue
        yield Match(
            title=f"loading the batch takes {format_duration(one.duration_ns, 2)} of the "
            "training process in every step",
            fix="DataLoader(..., num_workers=4, persistent_workers=True)",
            evidence=one.evidence,
            location=one.location,
            events=one.events,
            edit=_with_workers(case, one),
        )


def _with_workers(case: RuleInput, one: Loading) -> Edit:
    """Return the step with enough workers to hide the loading, up to the limit."""
    most = min(MOST_WORKERS, max(2, case.facts.num_cores or MOST_WORKERS))
    wanted = math.ceil(one.duration_ns / max(1.0, one.hidden_ns))
    num_workers = min(most, max(2, wanted))
    return Edit(
        replaced={
            index: (
                replace(work, num_workers=num_workers),
                replace(work, duration_ns=HANDOFF_NS),
            )
            for index, work in case.each(HostWork)
            if index in one.events
        }
    )


# Cost of the replacing index call: the call, and a copy at 5 GB/s; an estimate.
_INDEX_CALL_NS, _GATHER_NS_PER_BYTE = 20_000, 0.2

_FIX = "index whole batches: for rows in torch.randperm(len(x)).split(batch_size)"


@rule("LOAD002", "LOADER_PER_ITEM")
def items_in_memory(case: RuleInput) -> Matches:
    for one in loadings(case):
        if one.is_indexed_by_item and one.is_in_the_way:
            num_bytes = one.loader.batch_bytes if one.loader else 0
            index_ns = round(_INDEX_CALL_NS + _GATHER_NS_PER_BYTE * num_bytes)
            works = ((i, work) for i, work in case.each(HostWork) if i in one.events)
            yield Match(
                title=f"tensors in memory are fetched item by item, "
                f"{format_duration(one.duration_ns, 2)} in every step",
                fix=_FIX,
                evidence=one.evidence,
                location=one.location,
                events=one.events,
                edit=changed(
                    {
                        i: replace(work, duration_ns=min(work.duration_ns, index_ns), num_workers=0)
                        for i, work in works
                    }
                ),
            )
    # Items of tensors on the device: one operator for each.
    fetched = tuple(index for index, op in case.each_on_device() if op.phase is Phase.DATA)
    loader = next((one for one in case.facts.loaders if not one.has_batched_fetch), None)
    if loader is not None and 1 < loader.batch_size <= len(fetched):
        yield Match(
            title=f"tensors on the GPU are fetched item by item, {len(fetched)} operators in "
            "every step",
            fix=_FIX,
            evidence=f"{len(fetched)} operators fetch a batch of {loader.batch_size}",
            location=loader.location,
            events=fetched,
            # One operator remains for each tensor of the batch; a pair of tensors is usual.
            edit=without(fetched[2:]),
        )


# Time to start and end one forked worker: 17 to 45 ms with 1, 2 and 4 workers. With spawn, as on
# Windows and macOS, each imports torch again, which takes seconds.
# Source: see HANDOFF_NS.
_RESTART_NS, _RESTART_LOW_NS, _RESTART_HIGH_NS = 20e6, 10e6, 100e6
# An epoch is short if restarts take at least this fraction of it.
_MIN_RESTART_FRACTION = 0.05


@rule("LOAD003", "LOADER_RESPAWN")
def restarted_workers(case: RuleInput) -> Matches:
    for loader in case.facts.loaders:
        if not loader.num_workers or loader.persistent_workers or not loader.batch_size:
            continue
        num_steps = math.ceil(loader.num_samples / loader.batch_size)
        if not num_steps or not _has_several_epochs(case, loader):
            continue
        epoch_ns = num_steps * case.step_ns
        share, low, high = (
            loader.num_workers * each_ns / (loader.num_workers * each_ns + epoch_ns)
            for each_ns in (_RESTART_NS, _RESTART_LOW_NS, _RESTART_HIGH_NS)
        )
        if share < _MIN_RESTART_FRACTION:
            continue
        yield Match(
            title=f"{loader.num_workers} workers are started again every {num_steps} steps",
            fix="DataLoader(..., persistent_workers=True), or no workers for small data",
            evidence=f"num_workers={loader.num_workers} without persistent_workers, "
            f"{loader.num_samples} samples in batches of {loader.batch_size}",
            location=loader.location,
            share_fraction=share,
            gain=KnownGain(fraction=share, low_fraction=low, high_fraction=high),
        )


def _has_several_epochs(case: RuleInput, loader: LoaderFacts) -> bool:
    if loader.num_epochs > 1:
        return True
    return any(
        "epoch" in ast.unparse(loop.target).lower()
        and not (isinstance(loop.iter, ast.Call) and is_constant((*loop.iter.args, None)[0], 1))
        for _, loop in case.sources.nodes(ast.For)
    )


# Hosts of GPUs have at least this many processors, even if this machine has fewer.
_FEWEST_CORES = 4


@rule("LOAD004", "LOADER_TOO_MANY")
def too_many_workers(case: RuleInput) -> Matches:
    cores = case.facts.num_cores
    for loader in case.facts.loaders:
        if cores and loader.num_workers > max(cores, _FEWEST_CORES):
            yield Match(
                title=f"{loader.num_workers} worker processes on {cores} processors",
                fix="DataLoader(..., num_workers=min(8, os.cpu_count() or 1))",
                evidence=f"num_workers={loader.num_workers}; the process may use {cores} "
                "processors here",
                location=loader.location,
            )


# From this time on, a sample is computed rather than fetched.
_HEAVY_SAMPLE_NS = 200_000


@rule("LOAD005", "TRANSFORM_CPU")
def heavy_samples(case: RuleInput) -> Matches:
    # Events that other loader rules report.
    others = (no_workers, items_in_memory, slow_storage)
    explained = {event for one in others for found in one.detect(case) for event in found.events}
    is_waiting = case.prediction.bound is Bound.HOST_DATA
    most = min(MOST_WORKERS, case.facts.num_cores)
    for one in loadings(case):
        sample_ns = one.sample_ns * one.cpu_ns / one.duration_ns if one.duration_ns else 0.0
        # Whether loading on its processors takes longer than the rest of the step.
        num_loading = min(max(1, one.num_workers), most or MOST_WORKERS)
        is_slower = one.cpu_ns / num_loading > one.hidden_ns
        is_computed = one.line_in_data_set(line_that_reads) == one.location
        is_heavy = sample_ns >= _HEAVY_SAMPLE_NS and is_slower and is_computed
        is_left = is_waiting and one.is_in_the_way and explained.isdisjoint(one.events)
        if not is_left and not (is_heavy and not one.is_stream):
            continue
        batch = format_duration(one.duration_ns / max(1, one.num_workers), 2)
        sample = f": {format_duration(sample_ns, 2)} of a processor for each sample"
        keep = "" if one.is_stream else "prepare samples once and keep them, "
        more = f", or num_workers={most}" if 0 < one.num_workers < most else ""
        yield Match(
            title=f"the GPU waits for the loader, which takes {batch} for the data of a step"
            f"{sample if sample_ns else ''}",
            fix=f"{keep}transform whole batches on the GPU, or make samples cheaper or "
            f"smaller{more}",
            evidence=one.evidence,
            location=one.line_in_data_set(heaviest_line),
            events=one.events,
            edit=without(one.events),
        )


# A shared processor works half of the time, or less at times.
_WAITING_FRACTION = 0.25


@rule("LOAD006", "IO_SLOW")
def slow_storage(case: RuleInput) -> Matches:
    for one in loadings(case):
        if one.is_short or not one.is_in_the_way:
            continue
        location = one.line_in_data_set(line_that_reads)
        waits = one.cpu_fraction < _WAITING_FRACTION
        # Waiting without a visible read, in the training process, is LOAD001.
        if location == one.location and not (waits and one.num_workers):
            continue
        yield Match(
            title="a batch waits for storage"
            if waits
            else f"each sample reads a file, {format_duration(one.sample_ns, 2)} each",
            fix="read the files once, into memory or into one file that is mapped",
            evidence=f"{one.evidence}; the processor works for "
            f"{format_percent(one.cpu_fraction)} of that",
            location=location,
            events=one.events,
            edit=without(one.events),
        )

"""What each ``DataLoader`` costs the step, and what its data set does for one sample."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from breakeven.doctor.rule import Case
from breakeven.source import (
    COMPREHENSIONS,
    LOOP_STATEMENTS,
    SourceFile,
    dotted_name,
    last_name,
    methods_of,
    nodes_in,
)
from breakeven.trace import HostWork, LoaderFacts, Location
from breakeven.units import format_duration

# Below this part of a step loading is not worth a change.
_MIN_SHARE_FRACTION = 0.1

# What taking a batch from a worker costs the training process, at least.
# Source: measured with torch 2.13 on two shared x86-64 cores, batches of 10 KB and of 800 KB.
HANDOFF_NS = 500_000

# Workers that a GPU can count on; more is rare, and so are reports of more that helped.
MOST_WORKERS = 8
_FETCHES = ("__getitem__", "__getitems__", "__iter__", "__next__")

# Calls that open or parse a file. An image's reader is missing: decoding it costs more.
_READERS = frozenset({
    "open", "load", "loadtxt", "genfromtxt", "fromfile", "read_csv", "read_parquet", "read_json",
    "read_bytes", "read_text", "File", "urlopen", "getfo", "memmap", "ZipFile", "loadmat",
})  # fmt: skip
_READING_MODULES = frozenset({
    "np", "numpy", "torch", "pd", "pandas", "h5py", "zarr", "json", "pickle", "io", "gzip",
    "zipfile", "sio", "scipy", "requests", "urllib",
})  # fmt: skip
_METHOD_READERS = frozenset({"read_bytes", "read_text", "open"})

# Parts of names of calls that take long for one sample, whatever library they are of.
_HEAVY = (
    "resize", "interpolate", "rotat", "affine", "warp", "perspective", "grid_sample", "crop",
    "blur", "filter", "convolve", "fft", "stft", "spectrogram", "mfcc", "resample", "decompress",
    "decode", "imread", "loadtxt", "read_csv", "tokeniz", "encode", "transform", "augment",
    "zoom", "elastic", "jitter", "parse", "finditer", "sort", "svd", "inv",
)  # fmt: skip

# By these a table of pandas gives a row, which is slow.
_ROWS = frozenset({"iloc", "loc", "iat", "at"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What one loader costs the step.

    Args:
        case: The step.
        loader: What is known of it; None where nothing is.
        events: Its fetches.
        location: Where it is made, or where the batch is taken.
        duration_ns: All fetches of a step, in one process.
        num_workers: Worker processes.
    """

    case: Case
    loader: LoaderFacts | None
    events: tuple[int, ...]
    location: Location | None
    duration_ns: float
    num_workers: int

    @property
    def sample_ns(self) -> float:
        """Return the time of one sample; 0 where the batch size is not known."""
        samples = self.loader.batch_size * len(self.events) if self.loader else 0
        return self.duration_ns / samples if samples else 0.0

    @property
    def cpu_ns(self) -> float:
        """Return the processor time of all fetches of a step; all of it where that is not known."""
        if self.loader is None or not self.loader.fetch_cpu_ns:
            return self.duration_ns
        return min(self.duration_ns, float(self.loader.fetch_cpu_ns * len(self.events)))

    @property
    def cpu_fraction(self) -> float:
        """Return the part of the time in which the processor works rather than waits."""
        if self.loader is None or not self.loader.fetch_ns or not self.loader.fetch_cpu_ns:
            return 1.0
        return min(1.0, self.loader.fetch_cpu_ns / self.loader.fetch_ns)

    @property
    def hidden_ns(self) -> float:
        """Return the part of the step that does not load."""
        if self.num_workers:
            return max(self.case.prediction.host_ns, self.case.prediction.device_busy_ns)
        return max(0.0, self.case.step_ns - self.duration_ns)

    @property
    def is_in_the_way(self) -> bool:
        """Return whether the step would be a tenth shorter or more without the loading."""
        if not self.num_workers:
            return self.duration_ns >= _MIN_SHARE_FRACTION * self.case.step_ns
        # The step that the loader sets is as long as its share of a batch.
        share_ns = self.duration_ns / self.num_workers
        return self.hidden_ns > 0 and share_ns >= 0.9 * self.case.step_ns

    @property
    def is_stream(self) -> bool:
        """Return whether samples are made without an end, so that there is nothing to keep."""
        return self.loader is not None and not self.loader.num_samples

    @property
    def is_short(self) -> bool:
        """Return whether a batch takes hardly longer than to hand it over from a worker."""
        return self.duration_ns < 2 * HANDOFF_NS * len(self.events)

    @property
    def is_indexed(self) -> bool:
        """Return whether the data set does nothing but index what is in memory."""
        if self.loader is None:
            return False
        found = fetch_function(self.case, self.loader)
        return self.loader.is_indexed or (found is not None and is_plain_indexing(found[1]))

    @property
    def is_indexed_by_item(self) -> bool:
        """Return whether samples in memory are indexed one by one."""
        return (
            self.loader is not None
            and not self.loader.has_batched_fetch
            and bool(self.loader.data_bytes)
            and self.is_indexed
        )

    @property
    def evidence(self) -> str:
        """Return in words what fetching takes, and from which data set."""
        taking = f"fetching takes {format_duration(self.duration_ns, 2)}"
        workers = f"{self.num_workers or 'no'} workers"
        if self.loader is None:
            return f"{taking} with {workers}"
        sample = f", {format_duration(self.sample_ns, 2)} a sample" if self.sample_ns else ""
        return f"{self.loader.dataset} with {workers}: {taking}{sample}"

    def line_in_data_set(
        self, find: Callable[[SourceFile, ast.FunctionDef], Location | None]
    ) -> Location | None:
        """Return a line of the data set's own source; the loader's where there is none."""
        found = fetch_function(self.case, self.loader) if self.loader is not None else None
        return (find(*found) if found is not None else None) or self.location


def loadings(case: Case) -> Iterator[Loading]:
    """Yield what each loader costs the step."""
    groups: dict[int, dict[int, HostWork]] = {}
    for index, work in case.each(HostWork):
        if work.kind == "data":
            groups.setdefault(work.num_workers, {})[index] = work
    for num_workers, fetches in groups.items():
        # The most used come first; a step takes its batch from one of them.
        loaders = (one for one in case.facts.loaders if one.num_workers == num_workers)
        loader = next(loaders, None)
        made_at = settings_location(case, loader) if loader is not None else None
        yield Loading(
            case=case,
            loader=loader,
            events=tuple(fetches),
            location=made_at or next(iter(fetches.values())).location,
            duration_ns=sum(work.duration_ns for work in fetches.values()),
            num_workers=num_workers,
        )


def settings_location(case: Case, loader: LoaderFacts) -> Location | None:
    """Return where the script sets the loader up, which may be a trainer's arguments."""
    source = case.sources.find(loader.location)
    if source is not None and case.sources.call_at(loader.location, "DataLoader") is None:
        for call in source.calls("TrainingArguments"):
            return source.location(call)
    return loader.location


def fetch_function(case: Case, loader: LoaderFacts) -> tuple[SourceFile, ast.FunctionDef] | None:
    """Return the method of the user's data set that yields a sample; None where there is none."""
    source = case.sources.find(loader.dataset_location)
    for node in source.nodes(ast.ClassDef) if source else ():
        methods = methods_of(node) if node.name == loader.dataset else {}
        for name in _FETCHES:
            if source is not None and name in methods:
                return source, methods[name]
    return None


def is_plain_indexing(function: ast.FunctionDef) -> bool:
    """Return whether a method only returns slices of what the data set holds."""
    match function.body[ast.get_docstring(function) is not None :]:
        case [ast.Return(value=ast.Dict(values=parts))]:
            pass
        case [ast.Return(value=ast.Tuple(elts=parts) | ast.List(elts=parts))]:
            pass
        case [ast.Return(value=ast.expr() as value)]:
            parts = [value]
        case _:
            return False
    return all(isinstance(part, ast.Subscript) for part in parts)


def line_that_reads(source: SourceFile, function: ast.FunctionDef) -> Location | None:
    """Return the line that reads a file for each sample; None where none does."""
    calls = (c for scope in _with_helpers(source, function) for c in nodes_in(scope, ast.Call))
    return next((source.location(call) for call in calls if _reads(call)), None)


def heaviest_line(source: SourceFile, function: ast.FunctionDef) -> Location:
    """Return the line that most likely takes the time of a sample.

    A loop in Python comes before a call that is known to be slow, and that before any other; the
    source alone shows no more.
    """
    scored = [
        (score, -position, node)
        for scope in _with_helpers(source, function)
        for position, node in enumerate(ast.walk(scope))
        if node is not scope and (score := _weight(node))
    ]
    if not scored:
        return source.location(function)
    return source.location(max(scored, key=lambda one: one[:2])[2])


def _weight(node: ast.AST) -> int:
    if isinstance(node, (*LOOP_STATEMENTS, *COMPREHENSIONS)):
        return 3 if any(nodes_in(node, ast.Call)) else 1
    if isinstance(node, ast.Subscript) and last_name(node.value) in _ROWS:
        return 2
    if not isinstance(node, ast.Call):
        return 0
    name = last_name(node.func).lower()
    return 2 if any(part in name for part in _HEAVY) else 0


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

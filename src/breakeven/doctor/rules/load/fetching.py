"""What the source of a data set says about the work behind one sample."""

from __future__ import annotations

import ast
from collections.abc import Iterator

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
from breakeven.trace import LoaderFacts, Location

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
    source alone tells no more.
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

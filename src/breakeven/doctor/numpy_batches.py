"""Batches that NumPy makes of an array in memory, followed through the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

from msgspec.structs import replace as replaced

from breakeven.doctor.events import copy_at
from breakeven.doctor.rule import Case
from breakeven.source import Function, Source
from breakeven.trace import Event, HostArray, HostWork, Location, Op, TensorSpec

# Calls that change the place or the type of numbers, and nothing that differs between epochs.
_PLAIN: Final = frozenset({
    "array", "as_tensor", "asarray", "ascontiguousarray", "astype", "contiguous", "copy", "cuda",
    "div", "divide", "expand_dims", "float", "float32", "float64", "from_numpy", "FloatTensor",
    "moveaxis", "multiply", "permute", "reshape", "rollaxis", "squeeze", "subtract", "swapaxes",
    "take", "Tensor", "tensor", "to", "transpose", "true_divide", "unsqueeze", "pin_memory",
})  # fmt: skip
_CASTS: Final = frozenset({"astype", "asarray", "array", "float32", "float64"})
_ARITHMETIC: Final = frozenset({"div", "divide", "multiply", "subtract", "true_divide"})
# Names, calls and parts of expressions that a value may pass through.
_MAX_DEPTH: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyBatch:
    """How a copied batch was made.

    Args:
        array: What it was taken from.
        cast: The line that makes its numbers wider; None where none does.
        num_passes: Operations of NumPy on all of its wide numbers, the cast left out.
        prepared: Positions of the host work in which that happens.
    """

    array: HostArray
    cast: Location | None
    num_passes: int
    prepared: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """The way from a part of an array to a value."""

    array: HostArray
    cast: Location | None = None
    num_passes: int = 0
    is_plain: bool = True


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where a name is looked up: a function with what it was called with, or the module."""

    source: Source
    function: Function | None
    given: dict[str, tuple[ast.expr, _Scope]] = field(
        default_factory=dict["str", "tuple[ast.expr, _Scope]"]
    )


def numpy_batch(case: Case, index: int) -> NumpyBatch | None:
    """Return how NumPy made the batch that is copied at a position; None where that is not plain.

    The array is known by what the recorded run held under that name, the way by the source; a call
    that may do something else each time (a random crop) ends it.
    """
    copy = copy_at(case.trace, index)
    source = case.sources.find(copy.location)
    if source is None or copy.location is None or not case.facts.arrays:
        return None
    walk = _Follow(case)
    scope = _Scope(source, source.function_around(copy.location.line))
    element_bytes = _element_bytes(copy.dtype)
    numel = copy.num_bytes // element_bytes
    fitting = [
        chain
        for call in _moves_at(source, copy.location.line)
        for chain in walk.chains(call, scope, 0)
        if _is_batch_of(chain.array, numel)
    ]
    # Labels of one number each would fit anything; the images fit themselves alone.
    best = max(fitting, key=lambda chain: prod(chain.array.shape[1:]), default=None)
    if best is None or not best.is_plain:
        return None
    return NumpyBatch(
        array=best.array,
        cast=best.cast,
        num_passes=best.num_passes,
        prepared=_work_before(case, index),
    )


def converted_on_device(case: Case, index: int, batch: NumpyBatch) -> tuple[Op, ...]:
    """Return what the device does in NumPy's place: one cast, and each pass over the numbers."""
    copy = copy_at(case.trace, index)
    shape = (copy.num_bytes // _element_bytes(copy.dtype),)
    wide = TensorSpec(shape=shape, dtype=copy.dtype or "float32", device="cuda:0")
    narrow = replaced(wide, dtype=batch.array.dtype)
    if batch.array.dtype == wide.dtype and not batch.num_passes:
        return ()
    cast = Op(
        name="aten._to_copy.default", inputs=(narrow,), outputs=(wide,), location=copy.location
    )
    change = replaced(cast, name="aten.mul.Tensor", inputs=(wide,))
    return (cast, *(change for _ in range(batch.num_passes)))


def gathered(case: Case, index: int, batch: NumpyBatch) -> dict[int, tuple[Event, ...]]:
    """Return NumPy's work for a copy that is left when it only collects the samples.

    It is shared out by the bytes that each pass reads and writes.
    """
    narrow = batch.array.element_bytes
    wide = _element_bytes(copy_at(case.trace, index).dtype)
    collecting, casting, changing = 2 * narrow, narrow + wide, 2 * wide * batch.num_passes
    left = collecting / (collecting + casting + changing)
    found: dict[int, tuple[Event, ...]] = {}
    for position in batch.prepared:
        work = case.trace.events[position]
        assert isinstance(work, HostWork)
        found[position] = (replaced(work, duration_ns=round(left * work.duration_ns)),)
    return found


def _is_batch_of(array: HostArray, numel: int) -> bool:
    row = prod(array.shape[1:])
    return len(array.shape) > 0 and row > 0 and numel % row == 0 and 2 * numel <= array.numel


def _element_bytes(dtype: str) -> int:
    return HostArray(name="", dtype=dtype or "float32", shape=()).element_bytes


def _moves_at(source: Source, line: int) -> list[ast.Call]:
    """Return the calls at a line that make or move a tensor, and are in no other such call."""
    calls = [call for call in source.calls_on(line) if _last_name(call.func) in _PLAIN]
    return [call for call in calls if not any(above in calls for above in source.parents(call))]


def _work_before(case: Case, index: int) -> tuple[int, ...]:
    """Return the script's own work before a copy, since the device was last given something."""
    found: list[int] = []
    for position in range(index - 1, -1, -1):
        event = case.trace.events[position]
        if isinstance(event, HostWork) and event.kind == "script":
            found.append(position)
        elif not (isinstance(event, Op) and event.is_on_host):
            break
    return tuple(reversed(found))


class _Follow:
    """Follows values backwards through assignments, calls and what functions return."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._arrays = {array.name: array for array in reversed(case.facts.arrays)}
        # Values on the way to the node, since names are often made from themselves.
        self._open: set[int] = set()

    def chains(self, node: ast.AST, scope: _Scope, depth: int) -> Iterator[_Chain]:
        """Yield the ways from parts of known arrays to a node."""
        if depth > _MAX_DEPTH:
            return
        if isinstance(node, ast.Subscript):
            array = self._arrays.get(_last_name(node.value))
            if array is not None and not _is_key(node):
                yield _Chain(array=array)
                return
            yield from self.chains(node.value, scope, depth + 1)
        elif isinstance(node, ast.Name):
            for value, own in _values_of(node.id, scope):
                yield from self._of_name(node.id, value, own, depth)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node, scope, depth)
        elif isinstance(node, ast.BinOp):
            for part in (node.left, node.right):
                for chain in self.chains(part, scope, depth + 1):
                    yield replace(chain, num_passes=chain.num_passes + 1)
        else:
            for part in ast.iter_child_nodes(node):
                yield from self.chains(part, scope, depth + 1)

    def _of_name(self, name: str, value: ast.AST, scope: _Scope, depth: int) -> Iterator[_Chain]:
        more = sum(
            isinstance(node.target, ast.Name) and node.target.id == name
            for node in scope.source.nodes(ast.AugAssign)
            if isinstance(node, ast.AugAssign) and _is_in(node, scope)
        )
        if id(value) in self._open:
            return
        self._open.add(id(value))
        for chain in self.chains(value, scope, depth + 1):
            yield replace(chain, num_passes=chain.num_passes + more)
        self._open.discard(id(value))

    def _of_call(self, call: ast.Call, scope: _Scope, depth: int) -> Iterator[_Chain]:
        name = _last_name(call.func)
        parts: list[ast.expr] = [*call.args, *(given.value for given in call.keywords)]
        if isinstance(call.func, ast.Attribute):
            parts.insert(0, call.func.value)
        made = _function_called(self._case, scope, name) if name not in _PLAIN else None
        if made is not None:
            source, function = made
            inner = _Scope(source, function, _given(call, function, scope))
            for value in _results_of(function):
                yield from self.chains(value, inner, depth + 1)
            return
        for part in parts:
            for chain in self.chains(part, scope, depth + 1):
                is_cast = name in _CASTS and ("float" in ast.unparse(call))
                yield replace(
                    chain,
                    cast=scope.source.location(call) if is_cast else chain.cast,
                    num_passes=chain.num_passes + (name in _ARITHMETIC),
                    is_plain=chain.is_plain and name in _PLAIN,
                )


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript):
        key = node.slice  # `data["images"][index]`
        return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_key(node: ast.Subscript) -> bool:
    return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)


def _is_in(node: ast.AST, scope: _Scope) -> bool:
    around = next(
        (above for above in scope.source.parents(node) if isinstance(above, Function)), None
    )
    return around is scope.function


def _values_of(name: str, scope: _Scope) -> Iterator[tuple[ast.AST, _Scope]]:
    """Yield what is assigned to a name where it is looked up, else in the module."""
    if name in scope.given:
        yield scope.given[name]
        return
    for own in (scope, _Scope(scope.source, None)):
        found = False
        for node in own.source.nodes(ast.Assign, ast.AnnAssign, ast.For):
            assert isinstance(node, (ast.Assign, ast.AnnAssign, ast.For))
            if not _is_in(node, own):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = node.iter if isinstance(node, ast.For) else node.value
            named = [part.id for t in targets for part in ast.walk(t) if isinstance(part, ast.Name)]
            if value is not None and name in named:
                found = True
                yield value, own
        if found:
            return


def _function_called(case: Case, scope: _Scope, name: str) -> tuple[Source, Function] | None:
    """Return the script's only function or method of a name."""
    sources = [scope.source, *(one for one in case.sources if one is not scope.source)]
    found = [
        (source, node)
        for source in sources
        for node in source.nodes(ast.FunctionDef)
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    return found[0] if len(found) == 1 else None


def _given(call: ast.Call, function: Function, scope: _Scope) -> dict[str, tuple[ast.expr, _Scope]]:
    names = [argument.arg for argument in function.args.args]
    if names[:1] == ["self"]:
        names = names[1:]
    given = {name: (value, scope) for name, value in zip(names, call.args, strict=False)}
    return given | {one.arg: (one.value, scope) for one in call.keywords if one.arg}


def _results_of(function: Function) -> Iterator[ast.AST]:
    for node in ast.walk(function):
        if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
            yield node.value

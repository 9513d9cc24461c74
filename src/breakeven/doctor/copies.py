"""Copies to the device: of what, made by what, and how they could be done or spared.

Batches that NumPy makes of an array in memory are followed through the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

from msgspec.structs import replace as replaced

from breakeven.doctor.crossings import Made, Upload, made_on_host, round_trips, uploads
from breakeven.doctor.events import copy_at, with_tensors
from breakeven.doctor.rule import Case, num_copies
from breakeven.source import Function, SourceFile, arguments_of, bound_arguments, nodes_in, text_of
from breakeven.trace import Copy, Event, HostArray, HostWork, Location, Op, StepTrace, TensorSpec
from breakeven.units import format_bytes

_DEVICE = "cuda:0"
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


def queued(copy: Copy) -> Copy:
    """Return the copy from pinned memory, which nothing waits for."""
    return replaced(copy, is_pinned=True, non_blocking=True)


def on_device(event: Event) -> Op:
    """Return the operator as the device would run it."""
    assert isinstance(event, Op)
    moved = with_tensors(event, lambda spec: replaced(spec, device=_DEVICE))
    return replaced(moved, device=_DEVICE)


def whole(op: Op, num_elements: int) -> Op:
    """Return the operator on the device for a whole batch at once.

    Args:
        op: An operator of the host that may work on one sample.
        num_elements: Elements of the batch.
    """

    def sized(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        largest = max((tensor.numel for tensor in tensors), default=0)
        return tuple(
            replaced(tensor, shape=(num_elements,), layout="contiguous")
            if tensor.numel == largest
            else tensor
            for tensor in tensors
        )

    moved = on_device(op)
    return replaced(moved, inputs=sized(moved.inputs), outputs=sized(moved.outputs))


def uploaded(case: Case, kind: Upload) -> list[int]:
    """Return the copies of a kind, without those that bring back what was read."""
    back = {copy for trip in round_trips(case) for copy in trip.copies}
    return [index for index, own in uploads(case).items() if own is kind and index not in back]


def makers_of(trace: StepTrace, copies: tuple[int, ...]) -> tuple[int, ...]:
    """Return the operators of the host that made what is copied, out of nothing else."""
    made = {storage for storage, origin in made_on_host(trace).items() if origin is not Made.DATA}
    wanted = made & {copy_at(trace, index).storage for index in copies}
    makers: list[int] = []
    for index in reversed(range(len(trace.events))):
        op = trace.events[index]
        if not isinstance(op, Op) or not op.is_on_host:
            continue
        if any(tensor.storage in wanted for tensor in op.outputs):
            makers.append(index)
            wanted |= made & {tensor.storage for tensor in op.inputs}
    return tuple(reversed(makers))


def seen_copies(case: Case, events: tuple[int, ...]) -> str:
    """Return in words how many copies there are, and of how much."""
    copies = [copy_at(case.trace, index) for index in events]
    total = sum(copy.num_bytes for copy in copies)
    memory = "pinned" if all(copy.is_pinned for copy in copies) else "pageable"
    number = num_copies(len(copies))
    return f"{number} of {format_bytes(total)} from {memory} memory in the recorded step"


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

    source: SourceFile
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
    numel = copy.num_bytes // element_bytes(copy.dtype)
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
    shape = (copy.num_bytes // element_bytes(copy.dtype),)
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
    wide = element_bytes(copy_at(case.trace, index).dtype)
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


def element_bytes(dtype: str) -> int:
    """Return the bytes of one number; of a float32 where the type is not known."""
    return HostArray(name="", dtype=dtype or "float32", shape=()).element_bytes


def _moves_at(source: SourceFile, line: int) -> list[ast.Call]:
    """Return the calls at a line that make or move a tensor, and are in no other such call."""
    calls = [call for call in source.calls_on(line) if _last_name(call.func) in _PLAIN]
    return [call for call in calls if not any(above in calls for above in source.parents(call))]


def _work_before(case: Case, index: int) -> tuple[int, ...]:
    """Return the Python before a copy, since the device was last given something."""
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
        self._open: set[ast.AST] = set()

    def chains(self, node: ast.AST, scope: _Scope, depth: int) -> Iterator[_Chain]:
        """Yield the ways from parts of known arrays to a node."""
        if depth > _MAX_DEPTH:
            return
        if isinstance(node, ast.Subscript):
            array = self._arrays.get(_last_name(node.value))
            if array is not None and text_of(node.slice) is None:
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
            if scope.source.function_of(node) is scope.function
        )
        if value in self._open:
            return
        self._open.add(value)
        for chain in self.chains(value, scope, depth + 1):
            yield replace(chain, num_passes=chain.num_passes + more)
        self._open.discard(value)

    def _of_call(self, call: ast.Call, scope: _Scope, depth: int) -> Iterator[_Chain]:
        name = _last_name(call.func)
        own = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        made = _function_called(self._case, name) if name not in _PLAIN else None
        if made is not None:
            source, function = made
            given = bound_arguments(call, function).items()
            inner = _Scope(source, function, {name: (value, scope) for name, value in given})
            for result in nodes_in(function, ast.Return, ast.Yield):
                if result.value is not None:
                    yield from self.chains(result.value, inner, depth + 1)
            return
        for part in (*own, *arguments_of(call)):
            for chain in self.chains(part, scope, depth + 1):
                is_cast = name in _CASTS and ("float" in ast.unparse(call))
                yield replace(
                    chain,
                    cast=scope.source.location(call) if is_cast else chain.cast,
                    num_passes=chain.num_passes + (name in _ARITHMETIC),
                    is_plain=chain.is_plain and name in _PLAIN,
                )


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Subscript():  # `data["images"][index]`
            return text_of(node.slice) or ""
        case ast.Attribute():
            return node.attr
        case ast.Name():
            return node.id
        case _:
            return ""


def _values_of(name: str, scope: _Scope) -> Iterator[tuple[ast.AST, _Scope]]:
    """Yield what is assigned to a name where it is looked up, else in the module."""
    if name in scope.given:
        yield scope.given[name]
        return
    for own in (scope, _Scope(scope.source, None)):
        found = [
            value
            for target, value in _assigned(own.source)
            if any(part.id == name for part in nodes_in(target, ast.Name))
            and own.source.function_of(target) is own.function
        ]
        yield from ((value, own) for value in found)
        if found:
            return


def _assigned(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what is assigned, and what loops run over, by target."""
    yield from ((own.target, own.value) for own in source.bindings)
    yield from ((loop.target, loop.iter) for loop in source.nodes(ast.For))


def _function_called(case: Case, name: str) -> tuple[SourceFile, Function] | None:
    """Return the script's only function or method of a name."""
    nodes = case.sources.nodes(ast.FunctionDef)
    found = [(source, node) for source, node in nodes if node.name == name]
    return found[0] if len(found) == 1 else None

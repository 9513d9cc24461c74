"""Batches that NumPy makes from an array in memory, traced through one function's source."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from math import prod
from typing import Final

from msgspec.structs import replace

from breakeven.advise.events import copy_at
from breakeven.advise.rule import RuleInput
from breakeven.source import (
    Function,
    SourceFile,
    arguments_of,
    dotted_name,
    last_name,
    nodes_in,
    text_of,
)
from breakeven.trace import Event, HostArray, HostWork, Location, Op, TensorSpec

# Calls that change only the layout or the type of numbers, equally in every epoch.
_PLAIN: Final = frozenset({
    "array", "as_tensor", "asarray", "ascontiguousarray", "astype", "contiguous", "copy", "cuda",
    "div", "divide", "expand_dims", "float", "float32", "float64", "from_numpy", "FloatTensor",
    "moveaxis", "multiply", "permute", "reshape", "rollaxis", "squeeze", "subtract", "swapaxes",
    "take", "Tensor", "tensor", "to", "transpose", "true_divide", "unsqueeze", "pin_memory",
})  # fmt: skip
_CASTS: Final = frozenset({"astype", "asarray", "array", "float32", "float64"})
_ARITHMETIC: Final = frozenset({"div", "divide", "multiply", "subtract", "true_divide"})
# Maximum number of names, calls and subexpressions that a value may pass through.
_MAX_DEPTH: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyBatch:
    """The origin of a copied batch.

    Args:
        array: The array that it was taken from.
        cast: The line that widens its numbers; None if none does.
        num_passes: NumPy operations on all its wide numbers, without the cast.
        prepared: Positions of the host work with these operations.
    """

    array: HostArray
    cast: Location | None
    num_passes: int
    prepared: tuple[int, ...]


def numpy_batch(case: RuleInput, index: int) -> NumpyBatch | None:
    """Return the origin of the batch copied at a position; None if it is not clear.

    The recorded run gives the array by its name; the source of one function gives the operations. A
    call that may vary (a random crop) ends the search.
    """
    copy = copy_at(case.trace, index)
    source = case.sources.find(copy.location)
    if source is None or copy.location is None or not case.facts.arrays:
        return None
    numel = copy.num_bytes // element_bytes(copy.dtype)
    function = source.function_around(copy.location.line)
    moving = [one for one in source.calls_on(copy.location.line) if last_name(one) in _PLAIN]
    # Collect known arrays whose parts reach the copy, with all nodes in between; visit each node
    # once.
    waiting: list[tuple[ast.AST, ...]] = [(call,) for call in reversed(moving)]
    array, way, largest, seen = None, (), (0, 0), set[ast.AST]()
    while waiting:
        passed = waiting.pop()
        if passed[-1] in seen or len(passed) > _MAX_DEPTH:
            continue
        seen.add(passed[-1])
        own = _array_of(case, passed[-1])
        row = prod(own.shape[1:]) if own else 0
        if own is None:
            parts = _parts_of(source, function, passed[-1])
            waiting += [(*passed, part) for part in reversed(parts)]
        elif row and numel % row == 0 and 2 * numel <= own.numel and (row, len(passed)) > largest:
            # Prefer the largest rows: labels of one number each would fit any copy.
            array, way, largest = own, passed, (row, len(passed))
    calls = [node for node in way if isinstance(node, ast.Call)]
    if array is None or not all(last_name(call) in _PLAIN for call in calls):
        return None
    casts = [call for call in calls if last_name(call) in _CASTS and "float" in ast.unparse(call)]
    names = {node.id for node in way if isinstance(node, ast.Name)}
    in_place = (
        node
        for node in source.nodes(ast.AugAssign)
        if dotted_name(node.target) in names and source.function_of(node) is function
    )
    arithmetic = (
        node
        for node in way
        if isinstance(node, ast.BinOp)
        or (isinstance(node, ast.Call) and last_name(node) in _ARITHMETIC)
    )
    # The Python work before the copy, back to the last event for the device.
    prepared: list[int] = []
    for position in range(index - 1, -1, -1):
        event = case.trace.events[position]
        if isinstance(event, HostWork) and event.kind == "script":
            prepared.append(position)
        elif not (isinstance(event, Op) and event.is_on_host):
            break
    return NumpyBatch(
        array=array,
        cast=source.location(casts[0]) if casts else None,
        num_passes=len([*in_place, *arithmetic]),
        prepared=tuple(reversed(prepared)),
    )


def _array_of(case: RuleInput, node: ast.AST) -> HostArray | None:
    """Return the known array of which a node takes a part."""
    if not isinstance(node, ast.Subscript) or text_of(node.slice) is not None:
        return None
    name = text_of(node.value.slice) if isinstance(node.value, ast.Subscript) else ""
    name = name or last_name(node.value)  # `data["images"][index]`
    return next((array for array in case.facts.arrays if array.name == name), None)


def _parts_of(source: SourceFile, function: Function | None, node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node; for a name, the values assigned in the function, last first."""
    if isinstance(node, ast.Call):
        owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*owner, *arguments_of(node)]
    if not isinstance(node, ast.Name):
        return list(ast.iter_child_nodes(node))
    return [
        own.value
        for own in reversed(source.bindings)
        if any(part.id == node.id for part in nodes_in(own.target, ast.Name))
        and source.function_of(own.statement) is function
    ]


def converted_on_device(case: RuleInput, index: int, batch: NumpyBatch) -> tuple[Op, ...]:
    """Return the device operators that replace NumPy: a cast, and each pass over the numbers."""
    copy = copy_at(case.trace, index)
    shape = (copy.num_bytes // element_bytes(copy.dtype),)
    wide = TensorSpec(shape=shape, dtype=copy.dtype or "float32", device="cuda:0")
    narrow = replace(wide, dtype=batch.array.dtype)
    if batch.array.dtype == wide.dtype and not batch.num_passes:
        return ()
    cast = Op(
        name="aten._to_copy.default", inputs=(narrow,), outputs=(wide,), location=copy.location
    )
    change = replace(cast, name="aten.mul.Tensor", inputs=(wide,))
    return (cast, *(change for _ in range(batch.num_passes)))


def gathered(case: RuleInput, index: int, batch: NumpyBatch) -> dict[int, tuple[Event, ...]]:
    """Return the NumPy work that remains for a copy if it only collects the samples.

    Time is split by the bytes that each pass reads and writes.
    """
    narrow = batch.array.element_bytes
    wide = element_bytes(copy_at(case.trace, index).dtype)
    collecting, casting, changing = 2 * narrow, narrow + wide, 2 * wide * batch.num_passes
    left = collecting / (collecting + casting + changing)
    found: dict[int, tuple[Event, ...]] = {}
    for position in batch.prepared:
        work = case.trace.events[position]
        assert isinstance(work, HostWork)
        found[position] = (replace(work, duration_ns=round(left * work.duration_ns)),)
    return found


def element_bytes(dtype: str) -> int:
    """Return the bytes of one number; of a float32 if the type is unknown."""
    return HostArray(name="", dtype=dtype or "float32", shape=()).element_bytes

"""Operators that fill a tensor with numbers, or with what another holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from faststep.codegen.operators import Op, argument, lowers
from faststep.codegen.program import Const, Element, UnsupportedError, Value, View

if TYPE_CHECKING:
    from faststep.codegen.lowering import Lowering


@lowers(
    "full", "full_like", "new_full", "scalar_tensor", "zeros", "zeros_like", "new_zeros",
    "ones", "ones_like", "new_ones", "empty", "empty_like", "new_empty", "empty_strided",
    "new_empty_strided",
)  # fmt: skip
def _full(lowering: Lowering, op: Op, args: list[Any]) -> Const:
    name = op.name
    if name == "scalar_tensor":
        value = args[0]
    elif "full" in name:
        value = args[2] if name == "new_full" else args[1]
    else:
        value = 1 if "ones" in name else 0
    if not isinstance(value, bool | int | float):
        raise UnsupportedError("it is filled with a value that is not known beforehand")
    result = op.result
    lowering.check_dtype(result.dtype)
    return Const.of(value, result.shape, result.dtype)


@lowers("fill")
def _fill(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    return _filled(lowering, op, lowering.value(args[1], op.result.dtype))


def _filled(lowering: Lowering, op: Op, value: Value) -> Value:
    """Return a value as the result of an operator has it: in its shape, and of its type."""
    dtype = op.result.dtype
    if isinstance(value, Const):
        return Const.of(value.value, op.shape, dtype)
    text = "{0} != 0" if dtype == torch.bool else "{0}"
    return lowering.pointwise(text, [value], op.shape, dtype)


@lowers("arange", "iota")
def _arange(lowering: Lowering, op: Op, args: list[Any]) -> Element:
    result = op.result
    if op.name == "iota":
        start, step = op.kwargs["start"], op.kwargs["step"]
    else:
        start = args[0] if len(args) > 1 else 0
        step = argument(args, 2, 1)
    lowering.check_dtype(result.dtype)
    return lowering.pointwise(f"{start} + {{i0}} * {step}", [], result.shape, result.dtype)


@lowers("convert_element_type", "_to_copy")
def _convert(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    result = op.result
    given = lowering.value(args[0])
    if given.dtype == result.dtype:
        return given
    lowering.check_dtype(result.dtype)
    return _filled(lowering, op, given)


@lowers("copy_")
def _copy_to(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    place = args[0]
    if not isinstance(place, View) or not place.buffer.is_argument:
        raise UnsupportedError("it writes to what is not an argument")
    if any(place.buffer is other.buffer for other, _ in lowering.copies):
        raise UnsupportedError("it writes to an argument twice")
    lowering.copies.append((place, lowering.value(args[1])))
    return args[1]


@lowers("copy")
def _copy(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    result = op.result
    given = lowering.value(args[1])
    if given.dtype == result.dtype and tuple(given.shape) == tuple(result.shape):
        return given
    return lowering.pointwise("{0}", [given], result.shape, result.dtype)

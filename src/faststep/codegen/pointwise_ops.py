"""Lowering of pointwise operators with non-tensor arguments, and of fill operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from faststep.codegen.lowering import Lowering
from faststep.codegen.operators import FLOATS, POWERS, Op, argument, lowers
from faststep.codegen.program import Const, Element, UnsupportedError, Value, View


@lowers("where")
def _where(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    dtype = op.result.dtype
    inputs = [lowering.value(args[0]), *(lowering.value(one, dtype) for one in args[1:3])]
    return lowering.pointwise("{0} ? {1} : {2}", inputs, op.shape, dtype)


@lowers("pow")
def _pow(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    exponent = args[1]
    is_number = isinstance(exponent, bool | int | float)
    is_whole = exponent in (1, 2, 3) if isinstance(exponent, bool | int) else False
    if op.result.dtype not in FLOATS and not is_whole:
        raise UnsupportedError(f"not for {op.result.dtype}")
    if is_number and float(exponent) in POWERS:
        return lowering.computed(op, POWERS[float(exponent)], [lowering.value(args[0])])
    return lowering.lower_pointwise(op, "pow", args)


@lowers("clamp")
def _clamp(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    dtype = op.result.dtype
    low = op.kwargs.get("min", argument(args, 1))
    high = op.kwargs.get("max", argument(args, 2))
    value = lowering.value(args[0])
    for sign, given in (("<", low), (">", high)):
        if given is None:
            continue
        bound = lowering.value(given, dtype)
        text = f"{{0}} {sign} {{1}} ? {{1}} : {{0}}"
        if dtype in FLOATS and not (isinstance(bound, Const) and bound.value == bound.value):
            text = f"({{0}} {sign} {{1}} || {{1}} != {{1}}) ? {{1}} : {{0}}"
        value = lowering.computed(op, text, [value, bound])
    return value


@lowers("abs")
def _abs(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    text = "{f}abs({0})" if op.result.dtype in FLOATS else "{0} < 0 ? -{0} : {0}"
    return lowering.computed(op, text, [lowering.value(args[0])])


@lowers("signbit")
def _signbit(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    value = lowering.value(args[0])
    text = "__builtin_signbit({0}) != 0" if value.dtype in FLOATS else "{0} < 0"
    return lowering.pointwise(text, [value], op.shape, torch.bool)


@lowers("bitwise_not")
def _bitwise_not(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    value = lowering.value(args[0])
    text = "!{0}" if value.dtype == torch.bool else "~{0}"
    return lowering.pointwise(text, [value], op.shape, op.result.dtype)


# Expressions for integers and for floats. For integers, C's remainder has the sign of the dividend,
# and C rounds the quotient towards 0.
_OTHER_SIGN = "({0} % {1} != 0 && ({0} % {1} < 0) != ({1} < 0))"
_DIVISIONS = {
    "fmod": ("{0} % {1}", "{f}fmod({0}, {1})"),
    "remainder": (f"{{0}} % {{1}} + ({_OTHER_SIGN} ? {{1}} : 0)", "{f}remainder({0}, {1})"),
    "floor_divide": (f"{{0}} / {{1}} - {_OTHER_SIGN}", "{f}floor_divide({0}, {1})"),
    "trunc_divide": ("{0} / {1}", "{f}trunc({0} / {1})"),
}


@lowers("div", "remainder", "fmod")
def _divide(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    name, dtype = op.name, op.result.dtype
    if name == "div":
        rounding = op.kwargs.get("rounding_mode")
        if rounding is None:
            return lowering.lower_pointwise(replace(op, kwargs={}), "div", args)
        name = "floor_divide" if rounding == "floor" else "trunc_divide"
    inputs = [lowering.value(one, dtype) for one in args[:2]]
    of_integers, of_floats = _DIVISIONS[name]
    if dtype in FLOATS:
        return lowering.computed(op, of_floats, inputs)
    by = inputs[1]
    # Refuse these: an error of torch would be a crash of the C code.
    if not (isinstance(by, Const) and by.value not in (0, -1)):
        raise UnsupportedError("integers are divided by numbers alone, and not by 0 or -1")
    return lowering.computed(op, of_integers, inputs)


@lowers("full", "full_like", "scalar_tensor", "empty", "empty_permuted", "empty_strided")
def _full(lowering: Lowering, op: Op, args: list[Any]) -> Const:
    # A tensor of ``empty`` may have any values: use 0.
    value = 0 if op.name.startswith("empty") else args[-1]
    if not isinstance(value, bool | int | float):
        raise UnsupportedError("it is filled with a value that is not known beforehand")
    return Const.of(value, op.shape, op.result.dtype)


@lowers("convert_element_type", "_to_copy")
def _convert(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    given = lowering.value(args[0])
    return given if given.dtype == op.result.dtype else _converted(lowering, op, given)


def _converted(lowering: Lowering, op: Op, value: Value) -> Value:
    """Return a value in the shape and type of an operator's result."""
    dtype = op.result.dtype
    lowering.check_dtype(dtype)
    if isinstance(value, Const):
        return Const.of(value.value, op.shape, dtype)
    text = "{0} != 0" if dtype == torch.bool else "{0}"
    return lowering.pointwise(text, [value], op.shape, dtype)


@lowers("iota")
def _iota(lowering: Lowering, op: Op, args: list[Any]) -> Element:
    start, step = op.kwargs["start"], op.kwargs["step"]
    lowering.check_dtype(op.result.dtype)
    return lowering.pointwise(f"{start} + {{i0}} * {step}", [], op.shape, op.result.dtype)


@lowers("copy_")
def _copy_to(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    place = args[0]
    if not isinstance(place, View) or place.buffer.argument is None:
        raise UnsupportedError("it writes to what is not an argument")
    if any(place.buffer is other.buffer for other, _ in lowering.copies):
        raise UnsupportedError("it writes to an argument twice")
    lowering.copies.append((place, lowering.value(args[1])))
    return args[1]


@lowers("copy")
def _copy(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    given = lowering.value(args[1])
    if given.dtype == op.result.dtype and tuple(given.shape) == op.shape:
        return given
    return lowering.pointwise("{0}", [given], op.shape, op.result.dtype)

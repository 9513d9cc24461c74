"""Pointwise operators with an argument that is not an operand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from faststep.codegen.operators import FLOATS, Op, argument, cast_operands, lowers
from faststep.codegen.pointwise import POWERS
from faststep.codegen.program import (
    Const,
    UnsupportedError,
    Value,
)

if TYPE_CHECKING:
    from faststep.codegen.lowering import Lowering


@lowers("where")
def _where(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    result = op.result
    inputs = [lowering.value(args[0]), *(lowering.value(one, result.dtype) for one in args[1:3])]
    return lowering.pointwise("{0} ? {1} : {2}", inputs, result.shape, result.dtype)


@lowers("pow")
def _pow(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    result = op.result
    exponent = args[1]
    is_whole = exponent in (1, 2, 3) if isinstance(exponent, bool | int) else False
    if result.dtype not in FLOATS and not is_whole:
        raise UnsupportedError(f"not for {result.dtype}")
    if isinstance(exponent, bool | int | float) and float(exponent) in POWERS:
        inputs = [lowering.value(args[0])]
        expression = cast_operands(POWERS[float(exponent)], inputs, result.dtype)
        return lowering.pointwise(expression, inputs, result.shape, result.dtype)
    return lowering.lower_pointwise(op, "pow", args)


@lowers("clamp", "clamp_min", "clamp_max")
def _clamp(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    result = op.result
    low, high = [*args[1:], *op.kwargs.values(), None, None][:2]
    if op.kwargs:
        low, high = op.kwargs.get("min", argument(args, 1)), op.kwargs.get("max")
    if op.name == "clamp_max":
        low, high = None, low
    value = lowering.value(args[0])
    for sign, bound in (("<", low), (">", high)):
        if bound is None:
            continue
        inputs = [value, lowering.value(bound, result.dtype)]
        text = f"{{0}} {sign} {{1}} ? {{1}} : {{0}}"
        number = inputs[1]
        if result.dtype in FLOATS and not (
            isinstance(number, Const) and number.value == number.value
        ):
            text = f"({{0}} {sign} {{1}} || {{1}} != {{1}}) ? {{1}} : {{0}}"
        text = cast_operands(text, inputs, result.dtype)
        value = lowering.pointwise(text, inputs, result.shape, result.dtype)
    return value


@lowers("abs")
def _abs(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    result, value = op.result, lowering.value(args[0])
    text = "{f}abs({0})" if result.dtype in FLOATS else "{0} < 0 ? -{0} : {0}"
    text = cast_operands(text, [value], result.dtype)
    return lowering.pointwise(text, [value], result.shape, result.dtype)


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


@lowers("remainder", "fmod", "floor_divide")
def _remainder(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    return _divided(lowering, op, args, op.name)


@lowers("div")
def _div(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    rounding = op.kwargs.get("rounding_mode")
    if rounding is None:
        return lowering.lower_pointwise(replace(op, kwargs={}), "div", args)
    return _divided(lowering, op, args, "floor_divide" if rounding == "floor" else "trunc_divide")


# Integers: the rest has the sign of the dividend in C, and the quotient is rounded towards 0.
_OTHER_SIGN = "({0} % {1} != 0 && ({0} % {1} < 0) != ({1} < 0))"
_OF_INTEGERS = {
    "fmod": "{0} % {1}",
    "remainder": f"{{0}} % {{1}} + ({_OTHER_SIGN} ? {{1}} : 0)",
    "floor_divide": f"{{0}} / {{1}} - {_OTHER_SIGN}",
    "trunc_divide": "{0} / {1}",
}
_OF_FLOATS = {
    "fmod": "{f}fmod({0}, {1})",
    "remainder": "{f}remainder({0}, {1})",
    "floor_divide": "{f}floor_divide({0}, {1})",
    "trunc_divide": "{f}trunc({0} / {1})",
}


def _divided(lowering: Lowering, op: Op, args: list[Any], name: str) -> Value:
    result = op.result
    inputs = [lowering.value(one, result.dtype) for one in args[:2]]
    if result.dtype in FLOATS:
        text = _OF_FLOATS[name]
    else:
        by = inputs[1]
        # C code would end the process where torch raises an error.
        if not (isinstance(by, Const) and by.value not in (0, -1)):
            raise UnsupportedError("integers are divided by numbers alone, and not by 0 or -1")
        text = _OF_INTEGERS[name]
    text = cast_operands(text, inputs, result.dtype)
    return lowering.pointwise(text, inputs, result.shape, result.dtype)


@lowers("glu")
def _glu(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    view = lowering.view(args[0])
    dim = argument(args, 1, -1) % len(view.shape)
    half = view.shape[dim] // 2
    inputs = [view.sliced(dim, 0, half), view.sliced(dim, half, half)]
    text = cast_operands("{0} * {f}sigmoid({1})", inputs, op.result.dtype)
    return lowering.pointwise(text, inputs, op.shape, op.result.dtype)


@lowers("addcmul", "addcdiv")
def _addcmul(lowering: Lowering, op: Op, args: list[Any]) -> Value:
    result = op.result
    sign = "*" if "mul" in op.name else "/"
    inputs = [lowering.value(one) for one in args[:3]]
    factor = lowering.value(float(op.kwargs.get("value", 1)), result.dtype)
    expression = f"{{0}} + {{3}} * {{1}} {sign} {{2}}"
    return lowering.pointwise(expression, [*inputs, factor], result.shape, result.dtype)

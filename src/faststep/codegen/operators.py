"""Pointwise operators of ATen as C expressions, and the registry of handlers for all others.

``{0}``, ``{1}``, ... are the operands, already cast to the type of the computation; ``{f}`` is the
prefix of functions of that type in ``vector_math.h`` (``f32_`` or ``f64_``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from faststep.codegen.program import C_TYPES, Const, UnsupportedError, Value

# The result has the operands' common type.
ARITHMETIC = {
    "acos": "{f}acos({0})",
    "acosh": "{f}acosh({0})",
    "add": "{0} + {1}",
    "asin": "{f}asin({0})",
    "asinh": "{f}asinh({0})",
    "atan": "{f}atan({0})",
    "atan2": "{f}atan2({0}, {1})",
    "atanh": "{f}atanh({0})",
    "ceil": "{f}ceil({0})",
    "copysign": "{f}copysign({0}, {1})",
    "cos": "{f}cos({0})",
    "cosh": "{f}cosh({0})",
    "div": "{0} / {1}",
    "erf": "{f}erf({0})",
    "erfc": "{f}erfc({0})",
    "exp": "{f}exp({0})",
    "exp2": "{f}exp2({0})",
    "expm1": "{f}expm1({0})",
    "fma": "{0} * {1} + {2}",
    "floor": "{f}floor({0})",
    "hypot": "{f}hypot({0}, {1})",
    "lgamma": "{f}lgamma({0})",
    "log": "{f}log({0})",
    "log10": "{f}log10({0})",
    "log1p": "{f}log1p({0})",
    "log2": "{f}log2({0})",
    "maximum": "({0} != {0} || {0} > {1}) ? {0} : {1}",
    "minimum": "({0} != {0} || {0} < {1}) ? {0} : {1}",
    "fmax": "({1} != {1} || {0} > {1}) ? {0} : {1}",
    "fmin": "({1} != {1} || {0} < {1}) ? {0} : {1}",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "pow": "{f}pow({0}, {1})",
    "reciprocal": "1 / {0}",
    "relu": "{0} < 0 ? 0 : {0}",
    "round": "{f}rint({0})",
    "rsqrt": "1 / {f}sqrt({0})",
    "sigmoid": "{f}sigmoid({0})",
    "sign": "({0} > 0) - ({0} < 0)",
    "sgn": "({0} > 0) - ({0} < 0)",
    "sin": "{f}sin({0})",
    "sinh": "{f}sinh({0})",
    "sqrt": "{f}sqrt({0})",
    "sub": "{0} - {1}",
    "tan": "{f}tan({0})",
    "tanh": "{f}tanh({0})",
    "trunc": "{f}trunc({0})",
}
# The result is a bool for operands of any type.
COMPARISONS = {
    "eq": "{0} == {1}",
    "ge": "{0} >= {1}",
    "gt": "{0} > {1}",
    "isinf": "{0} - {0} != {0} - {0} && {0} == {0}",
    "isnan": "{0} != {0}",
    "le": "{0} <= {1}",
    "logical_and": "({0} != 0) & ({1} != 0)",
    "logical_not": "{0} == 0",
    "logical_or": "({0} != 0) | ({1} != 0)",
    "logical_xor": "({0} != 0) != ({1} != 0)",
    "lt": "{0} < {1}",
    "ne": "{0} != {1}",
}
# Only for integers and bools.
BITWISE = {
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
}
# For int32 and int64: overflow wraps around, as in torch; signed overflow is undefined in C.
WRAPPING = {
    "add": "({u}){0} + ({u}){1}",
    "mul": "({u}){0} * ({u}){1}",
    "neg": "-({u}){0}",
    "sub": "({u}){0} - ({u}){1}",
}
POINTWISE = ARITHMETIC | COMPARISONS | BITWISE
# Torch computes pow with these exponents by these expressions, and with all others by libm.
POWERS = {
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    0.5: "{f}sqrt({0})",
    1.0: "{0}",
    -0.5: "1 / {f}sqrt({0})",
    -1.0: "1 / {0}",
    -2.0: "1 / ({0} * {0})",
}


FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Op:
    """One operator of a traced graph.

    Args:
        node: Its node.
        name: Its name in ATen, without the overload.
        result: Its results, as tensors without values.
        kwargs: Its arguments by name.
    """

    node: fx.Node
    name: str
    result: Any
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, node: fx.Node) -> Op:
        """Return the operator of a node.

        Raises:
            UnsupportedError: The node is not an ATen operator.
        """
        packet = getattr(node.target, "overloadpacket", None)
        if packet is None:
            raise UnsupportedError(f"{node.target} has no generated code")
        return cls(node, packet.__name__, node.meta["val"], dict(node.kwargs))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the only result."""
        return tuple(int(size) for size in self.result.shape)

    def given(self, *place: int) -> torch.Tensor:
        """Return the tensor, without values, at a place in the arguments."""
        found: Any = self.node.args
        for index in place:
            found = found[index]
        return found.meta["val"]

    def operand(self, number: int) -> Any:
        """Return an argument: a tensor without values, or a number."""
        found = self.node.args[number]
        return found.meta["val"] if isinstance(found, fx.Node) else found


# Takes the lowering, the operator and its lowered arguments; returns the lowered result.
Handler = Callable[[Any, Op, list[Any]], Any]
HANDLERS: dict[str, Handler] = {}


def lowers(*names: str) -> Callable[[Handler], Handler]:
    """Return a decorator that registers a function as the handler of operators."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def covered_operators() -> set[str]:
    """Return the ATen names of all operators with generated code."""
    return {*HANDLERS, *POINTWISE}


def argument(args: Sequence[Any], place: int, default: Any = None) -> Any:
    """Return the argument at a place, or ATen's default if it is missing."""
    return args[place] if len(args) > place else default


def prefix_of(dtype: torch.dtype) -> str:
    """Return the prefix of the names of C functions for a float type."""
    return "f64" if dtype == torch.float64 else "f32"


def cast_operands(expression: str, inputs: Sequence[Value], dtype: torch.dtype) -> str:
    """Return an expression with its operands cast to one type."""
    for number, given in enumerate(inputs):
        operand = f"{{{number}}}"
        if given.dtype != dtype and not isinstance(given, Const):
            expression = expression.replace(operand, f"(({C_TYPES[dtype]}){operand})")
    return expression.replace("{f}", f"{prefix_of(dtype)}_")

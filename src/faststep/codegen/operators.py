"""Which function lowers which operator, and what these functions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from faststep.codegen.pointwise import POINTWISE
from faststep.codegen.program import C_TYPES, Const, UnsupportedError, Value

if TYPE_CHECKING:
    from faststep.codegen.lowering import Lowering

FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Op:
    """One operator of a traced graph.

    Args:
        node: Its node.
        name: Its name in ATen, without the overload.
        result: What it returns, as tensors without values.
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
            UnsupportedError: It is not one of ATen's.
        """
        packet = getattr(node.target, "overloadpacket", None)
        if packet is None:
            raise UnsupportedError(f"{node.target} has no generated code")
        return cls(node, packet.__name__, node.meta["val"], dict(node.kwargs))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of its only result."""
        return tuple(int(size) for size in self.result.shape)

    def given(self, *place: int) -> torch.Tensor:
        """Return the tensor, without values, that it was given at a place in its arguments."""
        found: Any = self.node.args
        for index in place:
            found = found[index]
        return found.meta["val"]

    def operand(self, number: int) -> Any:
        """Return an argument: a tensor without values, or a number."""
        found = self.node.args[number]
        return found.meta["val"] if isinstance(found, fx.Node) else found


Handler = Callable[["Lowering", Op, list[Any]], Any]
HANDLERS: dict[str, Handler] = {}


def lowers(*names: str) -> Callable[[Handler], Handler]:
    """Return a decorator that makes a function the handler of operators."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def covered_operators() -> set[str]:
    """Return the names in ATen of the operators that code is generated for."""
    return {*HANDLERS, *POINTWISE}


def argument(args: Sequence[Any], place: int, default: Any = None) -> Any:
    """Return the argument at a place, or what ATen takes where there is none."""
    return args[place] if len(args) > place else default


def prefix_of(dtype: torch.dtype) -> str:
    """Return how the names of C functions for a type of floats begin."""
    return "f64" if dtype == torch.float64 else "f32"


def cast_operands(expression: str, inputs: Sequence[Value], dtype: torch.dtype) -> str:
    """Return an expression with its operands in parentheses and of one type."""
    for number, given in enumerate(inputs):
        operand = f"{{{number}}}"
        if given.dtype != dtype and not isinstance(given, Const):
            expression = expression.replace(operand, f"(({C_TYPES[dtype]}){operand})")
    return expression.replace("{f}", f"{prefix_of(dtype)}_")

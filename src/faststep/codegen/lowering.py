"""Lowering of a traced step: each ATen operator becomes part of a loop, a view or a call.

The generator chooses the layout of intermediate tensors. If it is cheaper, then it computes a
product of batch-outermost inputs transposed, so that activations get the batch innermost. Loops and
products then use full vectors even in narrow layers, and read single weights in place. Gradients
get the parameter's layout, since the update reads both in one loop.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from faststep.codegen.emit import literal
from faststep.codegen.operators import (
    ARITHMETIC,
    FLOATS,
    HANDLERS,
    POINTWISE,
    WRAPPING,
    Op,
    cast_operands,
)
from faststep.codegen.placing import Placing
from faststep.codegen.program import (
    C_TYPES,
    Buffer,
    Call,
    Const,
    Element,
    Loop,
    Program,
    UnsupportedError,
    Value,
    View,
    contiguous,
    count,
)


class Lowering(Placing):
    """The state of one lowering: values of nodes, and the statements so far.

    Args:
        graph: The graph to lower.
        owner: The object with the graph's constants as attributes.
        lanes: Number of float32 elements in a vector.
        late: Numbers of the arguments that only the update reads.
        sums: The terms of each of the last arguments, which are sums over parts.
    """

    def __init__(
        self,
        graph: fx.Graph,
        owner: Any,
        lanes: int,
        late: Sequence[int],
        sums: Sequence[Sequence[View]] = (),
    ) -> None:
        super().__init__()
        self.lanes = lanes
        self._owner = owner
        self._nodes = list(graph.nodes)
        self._sums = sums
        self._values: dict[fx.Node, Any] = {}
        self._arguments: list[Buffer] = []
        self.copies: list[tuple[View, Value]] = []
        self._inputs = [node for node in self._nodes if node.op == "placeholder"]
        self.late_nodes = {self._inputs[number] for number in late}
        for node in self._nodes:
            if node.op == "call_function" and not self.late_nodes.isdisjoint(node.all_input_nodes):
                self.late_nodes.add(node)
        # The first arguments are parameters and other tensors that stay from step to step.
        self.num_kept = min(late, default=0)

    def run(self) -> Program:
        """Lower every node."""
        for node in self._lower_all():
            value = self._values[node]
            result = node.meta["val"]
            shape = tuple(result.shape)
            buffer = Buffer(result.dtype, count(shape), argument=len(self._arguments))
            self._arguments.append(buffer)
            self.copies.append((View(buffer, shape, contiguous(shape)), value))
        self._write_back()
        return Program(self._arguments, self.statements)

    def run_part(self) -> Program:
        """Lower every node of the graph for a part of the samples; keep its results."""
        # Use the parameter's layout: the update reads a sum of gradients with the parameter.
        self.late_nodes |= {node for node in self._nodes if node.op == "output"}
        results = [self.view(self._values[node]) for node in self._lower_all()]
        return Program(self._arguments, self.statements, results)

    def _lower_all(self) -> list[fx.Node]:
        """Lower every node; return the result nodes."""
        results: list[fx.Node] = []
        given = dict(
            zip(self._inputs[len(self._inputs) - len(self._sums) :], self._sums, strict=True)
        )
        for node in self._nodes:
            if node in given:
                views = given[node]
                text = " + ".join(f"{{{number}}}" for number in range(len(views)))
                self._values[node] = self.pointwise(text, views, views[0].shape, views[0].dtype)
            elif node.op == "placeholder":
                tensor = node.meta["val"]
                self.check_dtype(tensor.dtype)
                dims = list(zip(tensor.shape, tensor.stride(), strict=True))
                size = 1 + sum((length - 1) * stride for length, stride in dims)
                buffer = Buffer(tensor.dtype, size, argument=len(self._arguments))
                self._arguments.append(buffer)
                # A dimension of size 1 may have any stride.
                strides = tuple(0 if length == 1 else stride for length, stride in dims)
                self._values[node] = View(buffer, tuple(tensor.shape), strides)
            elif node.op == "output":
                results = [one for one in node.args[0] if one is not None]  # pyright: ignore
            elif node.op == "get_attr":
                self._values[node] = _constant(self, getattr(self._owner, str(node.target)))
            else:
                self._values[node] = self._lower(node)
        return results

    def _write_back(self) -> None:
        """Write results and changed arguments after all reads of their old values."""
        written = {place.buffer for place, _ in self.copies}
        self.first_of_update = len(self.statements)
        self.is_update = True
        # Place all readers of old values before the first write.
        kept: list[tuple[View, Value]] = []
        for place, value in self.copies:
            value = self.value(value)
            if isinstance(value, Element):
                self.place(value)
            elif isinstance(value, View) and value.buffer in written:
                if value == place:
                    continue
                saved = self.new_view(value.shape, value.dtype)
                self.copy(value, saved)
                value = saved
            kept.append((place, value))
        last_check = max(
            (one.number for one in self.statements if isinstance(one, Call) and one.checks),
            default=-1,
        )
        for place, value in kept:
            if (
                isinstance(value, Element)
                and value.shape == place.shape
                and value.dtype == place.dtype
                and self._can_store(self.place(value), place, last_check)
            ):
                value.stores.append(place)
            else:
                self.copy(value, place)

    def _can_store(self, loop: Loop, place: View, last_check: int) -> bool:
        """Whether a loop may overwrite an argument: no later statement reads the old value."""
        if loop.number <= last_check or any(
            view.buffer is place.buffer
            for statement in self.statements[loop.number + 1 :]
            for view in statement.reads
        ):
            return False
        same = [view for view in loop.reads if view.buffer is place.buffer]
        return all(view == place for view in same) and not any(
            view.buffer is place.buffer for view in loop.writes
        )

    def _lower(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            values, index = (self._operand(arg) for arg in node.args)
            return values[index]
        op = Op.of(node)
        args = [self._operand(arg) for arg in node.args]
        handler = HANDLERS.get(op.name)
        try:
            if handler is not None:
                return handler(self, op, args)
            if op.name in POINTWISE:
                return self.lower_pointwise(op, op.name, args)
        except UnsupportedError as error:
            raise UnsupportedError(f"{node.target}: {error.message}{_line(node)}") from None
        raise UnsupportedError(f"{node.target} has no generated code{_line(node)}")

    def _operand(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            return self._values[arg]
        if isinstance(arg, list | tuple):
            return [self._operand(one) for one in arg]
        return arg

    def lower_pointwise(self, op: Op, name: str, args: list[Any]) -> Value:
        """Return the result of an operator of the pointwise tables; cast operands to its type."""
        result = op.result
        self.check_dtype(result.dtype)
        if set(op.kwargs) - {"alpha"}:
            raise UnsupportedError(f"{', '.join(op.kwargs)} is not covered")
        expression = POINTWISE[name]
        if name in ARITHMETIC:
            dtype = result.dtype
        else:
            given = [op.operand(number) for number in range(len(args))]
            dtype = torch.result_type(*given) if len(given) == 2 else given[0].dtype
        if "{f}" in expression and dtype not in FLOATS:
            raise UnsupportedError(f"not for {dtype}")
        if name in WRAPPING and dtype in (torch.int64, torch.int32):
            expression = WRAPPING[name].replace("{u}", f"u{C_TYPES[dtype]}")
        if name in ARITHMETIC and dtype == torch.bool:  # a sum of 2 must become 1
            expression = f"({expression}) != 0"
        alpha = op.kwargs.get("alpha", 1)
        if alpha != 1:
            expression = expression.replace("{1}", "({2} * {1})")
            args = [*args[:2], alpha]
        elif name in ("add", "sub"):
            args = args[:2]
        if f"{{{len(args)}}}" in expression or f"{{{len(args) - 1}}}" not in expression:
            raise UnsupportedError(f"{len(args)} operands are not covered")
        inputs = [self.value(one, dtype) for one in args]
        # Skip products with 1 (the loss's own gradient) and sums with 0 (an unused gradient).
        neutral = {"mul": 1, "add": 0}.get(name)
        if neutral is not None and len(inputs) == 2:
            for one, other in (inputs, inputs[::-1]):
                if (
                    isinstance(one, Const)
                    and one.value == neutral
                    and tuple(other.shape) == tuple(result.shape)
                    and other.dtype == result.dtype
                ):
                    return other
        expression = cast_operands(expression, inputs, dtype)
        return self.pointwise(expression, inputs, result.shape, result.dtype)

    def computed(self, op: Op, expression: str, inputs: Sequence[Value]) -> Element:
        """Return the result of an operator by an expression; cast operands to its type."""
        dtype = op.result.dtype
        expression = cast_operands(expression, inputs, dtype)
        return self.pointwise(expression, inputs, op.shape, dtype)


def _constant(lowering: Lowering, tensor: torch.Tensor) -> Value:
    """Return a constant tensor that the traced function builds from numbers."""
    if isinstance(tensor, FakeTensor) or tensor.numel() > _MOST_CONSTANTS:
        raise UnsupportedError("a tensor from outside of the step is not covered")
    shape, dtype = tuple(tensor.shape), tensor.dtype
    lowering.check_dtype(dtype)
    numbers = tensor.flatten().tolist()
    if len(set(map(repr, numbers))) == 1:
        return Const.of(numbers[0], shape, dtype)
    kept = lowering.new_view(shape, dtype)
    listed = ", ".join(literal(number, dtype) for number in numbers) or "0"
    body = (
        f"static const {C_TYPES[dtype]} numbers[] = {{{listed}}};\n"
        f"for (long i = 0; i < {len(numbers)}; i++) p0[i] = numbers[i];"
    )
    lowering.call(body, [], [kept])
    return kept


# Limit of a constant's numbers, which Python code lists; more would make the source long.
_MOST_CONSTANTS = 4096


def _line(node: fx.Node) -> str:
    """Return the line of a node in the user's code, as the end of a message."""
    trace = node.meta.get("stack_trace") or node.stack_trace
    lines = [line.strip() for line in (trace or "").splitlines() if line.strip()]
    places = [line for line in lines if line.startswith("File ")]
    if not places:
        return ""
    return f" ({places[-1].removeprefix('File ')})"

"""Placing of a step's operators into loops and calls, and of their results into buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from faststep.codegen.operators import FLOATS, prefix_of
from faststep.codegen.program import (
    C_TYPES,
    Buffer,
    Call,
    Const,
    Element,
    Indirect,
    Input,
    Joined,
    Loop,
    Statement,
    UnsupportedError,
    Value,
    View,
    contiguous,
    count,
    loops_over,
    merge_dims,
)

# Rows and columns of a block that the kernel transposes in vectors. In a batch, do not transpose
# smaller matrices by blocks.
_LEAST_BLOCK = 8


class Placing:
    """The statements so far, and the rules for adding to them."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.packed: dict[tuple[View, tuple[int, ...]], View] = {}
        # Keep the update out of earlier loops: these still read the old values.
        self.first_of_update = 0
        self.is_update = False

    def new_view(
        self, shape: Sequence[int], dtype: torch.dtype, order: Sequence[int] | None = None
    ) -> View:
        """Return a dense view of a new buffer, with its dimensions in an order."""
        self.check_dtype(dtype)
        buffer = Buffer(dtype, max(count(shape), 1))
        return View(buffer, tuple(shape), contiguous(shape, order))

    def call(
        self,
        body: str,
        inputs: Sequence[View],
        outputs: Sequence[View],
        *,
        checks: bool = False,
        operations: float = 0,
        most_parts: int = 1,
    ) -> None:
        """Add a call; its parameters are the inputs, then the outputs."""
        number = len(self.statements)
        self.statements.append(
            Call(body, tuple(inputs), tuple(outputs), number, checks, operations, most_parts)
        )
        for output in outputs:
            output.buffer.written_at = max(output.buffer.written_at, number)

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise an error for a dtype without a C type."""
        if dtype not in C_TYPES:
            raise UnsupportedError(f"{dtype} has no generated code")

    def value(self, given: Any, dtype: torch.dtype | None = None) -> Value:
        """Return an operand as a value; a number becomes a constant of a dtype."""
        if isinstance(given, View | Const | Element):
            return given
        if isinstance(given, Joined):
            return self.view(given)
        if isinstance(given, bool | int | float):
            usual = torch.float32 if isinstance(given, float) else torch.int64
            return Const.of(given, (), dtype or usual)
        raise UnsupportedError(f"an operand is {type(given).__name__}")

    def view(self, value: Any) -> View:
        """Return a value in memory."""
        if isinstance(value, Joined):
            if value.kept is None:
                value.kept = self._join(value)
            return value.kept
        value = self.value(value)
        if isinstance(value, View):
            return value
        if isinstance(value, Const):
            kept = self.new_view((), value.dtype)
            self.store(value, kept)
            return kept.expanded(value.shape)
        loop = self.place(value)
        if value.kept is None:
            value.kept = self.new_view(value.shape, value.dtype, loop.order)
            value.kept.buffer.written_at = loop.number
            value.stores.append(value.kept)
        return value.kept

    def _join(self, value: Joined) -> View:
        orders = [
            self.place(part).order if isinstance(part, Element) else part.order()
            for part in value.parts
            if not isinstance(part, Const)
        ]
        joined = self.new_view(value.shape, value.dtype, orders[0] if orders else None)
        start = 0
        for part in value.parts:
            size = part.shape[value.dim]
            self.store(part, joined.sliced(value.dim, start, size))
            start += size
        return joined

    def store(self, value: Value, place: View) -> None:
        """Write a value to a place in memory, from its own loop if it is not in memory yet."""
        if isinstance(value, Element) and value.shape == place.shape and value.kept is None:
            loop = self.place(value)
            value.stores.append(place)
            place.buffer.written_at = max(place.buffer.written_at, loop.number)
            return
        self.copy(value, place)

    def copy(self, value: Value, place: View) -> None:
        """Write a value to a place in memory by a separate statement."""
        given = value if isinstance(value, Const) else self.view(value).expanded(place.shape)
        if isinstance(given, View) and self._transpose(given, place):
            return
        loop = self._new_loop(place.shape, place.order())
        element = Element("{0}", (given,), place.shape, place.dtype, loop, [place])
        loop.elements.append(element)
        place.buffer.written_at = max(place.buffer.written_at, loop.number)

    def _transpose(self, given: View, place: View) -> bool:
        """Copy by blocks if one view is the transpose of the other; return whether it is."""
        if given.dtype != place.dtype or given.dtype not in FLOATS or 0 in given.shape:
            return False
        nest = merge_dims(place.shape, place.order(), [given.strides, place.strides], set())
        if len(nest) < 2:
            return False
        *outer, (columns, (*_, column)) = nest
        across = [one for one in outer if given.strides[one[1][-1]] == 1]
        if place.strides[column] != 1 or given.strides[column] < 1 or len(across) != 1:
            return False
        ((rows, (*_, row)),) = across
        outer.remove(across[0])
        if outer and min(rows, columns) < _LEAST_BLOCK:
            return False
        loops = loops_over([size for size, _ in outer])

        def begin(view: View) -> str:
            dims = [dim for _, (*_, dim) in outer]
            return "".join(f" + i{number} * {view.strides[dim]}" for number, dim in enumerate(dims))

        body = (
            f"{loops}{prefix_of(given.dtype)}_transpose({columns}, {rows}, p0{begin(given)}, "
            f"{given.strides[column]}, p1{begin(place)}, {place.strides[row]});"
        )
        self.call(body, [given], [place])
        return True

    def arranged(self, view: View, order: tuple[int, ...]) -> View:
        """Return a copy of a tensor with its dimensions in an order in memory; reuse copies."""
        key = view, order
        found = self.packed.get(key)
        if found is None:
            found = self.new_view(view.shape, view.dtype, order)
            self.copy(view, found)
            self.packed[key] = found
        return found

    def reshaped(self, view: View, shape: tuple[int, ...]) -> View:
        """Return a tensor in another shape; copy it if its layout has no such view."""
        found = view.reshaped(shape)
        if found is None:
            dense = self.new_view(view.shape, view.dtype)
            self.copy(view, dense)
            found = dense.reshaped(shape)
            assert found is not None
        return found

    def pointwise(
        self, expression: str, inputs: Sequence[Input], shape: Sequence[int], dtype: torch.dtype
    ) -> Element:
        """Return the result of a pointwise operator; the first use chooses its loop."""
        sizes = tuple(int(size) for size in shape)
        return Element(expression, tuple(inputs), sizes, dtype)

    def place(self, value: Element) -> Loop:
        """Return the loop of an element; the first call puts it and its chain into a loop.

        Choose the last loop of its shape in which all its inputs are available, else a new loop.
        Thus the backward pass recomputes values of the forward pass from tensors that are in
        memory anyway, and the forward pass does not store them.
        """
        if value.loop is not None:
            return value.loop
        chain = self._chain(value)
        members = set(map(id, chain))
        given = [
            one
            for element in chain
            for one in element.inputs
            if not (isinstance(one, Element) and id(one) in members)
        ]
        loop = self._find_loop(value.shape, given, members)
        if loop is None:
            order = self._choose_order(given, value.shape)
            for element in chain:
                element.inputs = tuple(
                    self.arranged(self.view(one), order)
                    if id(one) not in members and self._is_across(one, value.shape, order)
                    else one
                    for one in element.inputs
                )
            loop = self._new_loop(value.shape, order)
        for element in chain:
            element.inputs = tuple(
                one if id(one) in members else self._within(one, loop) for one in element.inputs
            )
            element.loop = loop
            loop.elements.append(element)
        return loop

    def _new_loop(self, shape: tuple[int, ...], order: tuple[int, ...]) -> Loop:
        self.statements.append(loop := Loop(shape, order, len(self.statements)))
        return loop

    def _chain(self, value: Element) -> list[Element]:
        """Return an element and the unplaced elements of its shape that it needs, in order.

        Afterwards all their other inputs are in memory or in a loop.
        """
        chain: list[Element] = []
        seen: set[int] = set()
        todo: list[tuple[Element, bool]] = [(value, False)]
        while todo:
            element, is_ready = todo.pop()
            if is_ready:
                chain.append(element)
                continue
            if id(element) in seen:
                continue
            seen.add(id(element))
            element.inputs = tuple(self._settled(one, value.shape) for one in element.inputs)
            todo.append((element, True))
            for one in element.inputs:
                while isinstance(one, Indirect):
                    one = one.index
                if isinstance(one, Element) and one.loop is None:
                    todo.append((one, False))
        return chain

    def _settled(self, given: Input, shape: tuple[int, ...]) -> Input:
        """Return an input in a form that a loop of that shape can read."""
        if isinstance(given, Indirect):
            return replace(given, index=self._settled(given.index, shape))
        if isinstance(given, Element) and given.shape != shape:
            return self.view(given)
        return given

    def _find_loop(
        self, shape: tuple[int, ...], given: Sequence[Input], members: set[int]
    ) -> Loop | None:
        """Return the last loop in which all inputs are available; the chain joins it."""

        def is_known(one: Input, loop: Loop) -> bool:
            if id(one) in members:
                return True
            if isinstance(one, Element) and one.loop is loop:
                return True
            if isinstance(one, Indirect):
                is_written = one.view.buffer.written_at < loop.number
                return is_written and is_known(one.index, loop)
            return not self._is_across(one, shape, loop.order) and self._number(one) < loop.number

        for statement in reversed(self.statements[self.first_of_update :]):
            if (
                isinstance(statement, Loop)
                and statement.shape == shape
                and all(is_known(one, statement) for one in given)
            ):
                return statement
        return None

    def _number(self, given: Input) -> int:
        if isinstance(given, View):
            return given.buffer.written_at
        if isinstance(given, Element):
            return self.place(given).number
        if isinstance(given, Indirect):
            return max(given.view.buffer.written_at, self._number(given.index))
        return -1

    def _is_across(self, given: Input, shape: tuple[int, ...], order: tuple[int, ...]) -> bool:
        """Whether a loop would read a whole tensor with a stride in its innermost dimension."""
        if isinstance(given, Element):
            strides = contiguous(shape, self.place(given).order)
        elif isinstance(given, View) and given.shape == shape:
            strides = given.strides
        else:
            return False
        innermost = next((dim for dim in reversed(order) if shape[dim] > 1), None)
        if innermost is None or strides[innermost] <= 1:
            return False
        return any(stride == 1 and size > 1 for stride, size in zip(strides, shape, strict=True))

    def _within(self, given: Input, loop: Loop) -> Input:
        if isinstance(given, Indirect):
            return replace(given, index=self._within(given.index, loop))
        if isinstance(given, Element) and given.loop is not loop:
            return self.view(given)
        return given

    def _choose_order(self, inputs: Sequence[Input], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the most frequent order in memory of the inputs of the full shape."""
        votes: dict[tuple[int, ...], float] = {}
        for given in inputs:
            if isinstance(given, Element):
                order, weight = self.place(given).order, 1.0
            elif isinstance(given, View) and given.shape == shape:
                if any(
                    not one and size > 1 for one, size in zip(given.strides, shape, strict=True)
                ):
                    continue
                order, weight = given.order(), 1.0
                # Reading a batch across its layout once is cheap; optimizer state is also written.
                if given.buffer.argument is not None:
                    weight = 100.0 if self.is_update else 0.5
            else:
                continue
            votes[order] = votes.get(order, 0.0) + weight
        return max(votes, key=lambda order: votes[order]) if votes else tuple(range(len(shape)))

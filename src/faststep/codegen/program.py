"""A generated step before it is text: buffers, views of them, and statements in order.

Every buffer but an argument is written once. Loops hold pointwise operators of one shape, fused;
what no loop can hold (products, convolutions) is a call of a kernel. Statements that do the same to
other buffers share one C function: the code of a recurrent net does not grow with its sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from faststep.errors import FastStepError

C_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "uint8_t",
}


class UnsupportedError(FastStepError):
    """A step holds something that no code can be generated for."""


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory of one tensor.

    Args:
        dtype: Type of its elements.
        size: Number of elements that are used.
        argument: Its number among the caller's tensors; None if it is the step's own.
        written_at: Number of the statement that writes it; -1 for an argument.
    """

    dtype: torch.dtype
    size: int
    argument: int | None = None
    written_at: int = -1


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in a buffer.

    Args:
        buffer: Where it lies.
        shape: Its sizes.
        strides: Elements from one index to the next, per dimension; 0 where it is broadcast.
        offset: Element of the buffer at which it begins.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of its elements."""
        return self.buffer.dtype

    def permuted(self, dims: Sequence[int]) -> View:
        """Return it with its dimensions in another order."""
        shape, strides = (tuple(of[dim] for dim in dims) for of in (self.shape, self.strides))
        return View(self.buffer, shape, strides, self.offset)

    def expanded(self, shape: Sequence[int]) -> View:
        """Return it broadcast to a shape."""
        new = len(shape) - len(self.shape)
        assert new >= 0, f"{self.shape} as {shape}"
        strides = tuple(
            0 if dim < new or self.shape[dim - new] == 1 else self.strides[dim - new]
            for dim in range(len(shape))
        )
        return View(self.buffer, tuple(shape), strides, self.offset)

    def sliced(self, dim: int, start: int, size: int, step: int = 1) -> View:
        """Return a part of it along one dimension."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[dim]
        shape[dim], strides[dim] = size, strides[dim] * step
        return View(self.buffer, tuple(shape), tuple(strides), offset)

    def selected(self, dim: int, index: int) -> View:
        """Return it at one index of a dimension, without that dimension."""
        part = self.sliced(dim, index, 1)
        keep = [d for d in range(len(self.shape)) if d != dim]
        return part.permuted(keep)

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """Return it in another shape; None if that needs a copy."""
        if 0 in self.shape:
            return View(self.buffer, tuple(shape), contiguous(shape), self.offset)
        meta = torch.empty_strided(self.shape, self.strides, device="meta")
        try:
            strides = meta.view(tuple(shape)).stride()
        except RuntimeError:
            return None
        return View(self.buffer, tuple(shape), tuple(strides), self.offset)

    def address(self, indices: Sequence[int] | None = None) -> str:
        """Return the place of an element as C; `indices` are the numbers of its loops' indices."""
        numbers = range(len(self.shape)) if indices is None else indices
        pairs = zip(numbers, self.strides, strict=True)
        return " + ".join(f"i{number} * {stride}" for number, stride in pairs if stride) or "0"

    def order(self) -> tuple[int, ...]:
        """Return its dimensions from the outermost in memory to the innermost."""
        return tuple(sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim]))


@dataclass(frozen=True, slots=True)
class Const:
    """A tensor all elements of which are one number known now."""

    value: float
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, value: float, shape: Sequence[int], dtype: torch.dtype) -> Const:
        """Return a number as a tensor of that type has it.

        Raises:
            UnsupportedError: No tensor of that type can hold it.
        """
        if dtype not in C_TYPES:
            raise UnsupportedError(f"{dtype} has no generated code")
        try:
            usual = torch.float64 if isinstance(value, float) else None
            number = torch.tensor(value, dtype=usual, device="cpu").to(dtype).item()
            return cls(number, tuple(shape), dtype)
        except (OverflowError, RuntimeError):
            raise UnsupportedError(f"{value} is not a number of {dtype}") from None


@dataclass(eq=False, slots=True)
class Element:
    """The result of one pointwise operator within a loop.

    Args:
        expression: C, with ``{0}``, ``{1}`` for the inputs and ``{i0}`` for a loop's index.
        inputs: What it is computed from.
        shape: The loop's shape.
        dtype: Type of the result.
        loop: The loop that it is part of; None until somebody uses it.
        stores: Where it is written, if it is needed after the loop.
    """

    expression: str
    inputs: tuple[Input, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    loop: Loop | None = None
    stores: list[View] = field(default_factory=list)
    kept: View | None = None


@dataclass(frozen=True, slots=True)
class Indirect:
    """An element of a view, one index of which is the value of an element of the loop."""

    view: View
    dim: int
    index: Element | View | Const

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of what is read."""
        return self.view.dtype


@dataclass(eq=False, slots=True)
class Joined:
    """Tensors side by side along one dimension, put together only where somebody reads them so.

    Gates of a recurrent layer are parts of one product that are changed one by one: each is taken
    as it is.

    Args:
        shape: Of all together.
        dim: The dimension along which they lie.
        parts: The tensors in order.
        kept: Where they are in memory, once they are.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    dim: int
    parts: tuple[Value, ...]
    kept: View | None = None

    def slice(self, dim: int, start: int, size: int) -> Value | None:
        """Return the part of it that is just this slice; None if there is none."""
        if dim != self.dim:
            return None
        at = 0
        for part in self.parts:
            length = part.shape[dim]
            if start == at and size == length:
                return part
            if at <= start and start + size <= at + length:
                if isinstance(part, View):
                    return part.sliced(dim, start - at, size)
                if isinstance(part, Const):
                    shape = (*part.shape[:dim], size, *part.shape[dim + 1 :])
                    return Const(part.value, shape, part.dtype)
            at += length
        return None


Value = View | Const | Element
Input = View | Const | Element | Indirect


@dataclass(eq=False, slots=True)
class Loop:
    """Pointwise operators of one shape in one nest of loops.

    Args:
        shape: Sizes of its dimensions.
        order: The dimensions from the outermost loop to the innermost.
        number: Its place among the statements.
        elements: Its operators in order.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    number: int
    elements: list[Element] = field(default_factory=list)

    @property
    def reads(self) -> list[View]:
        """What it reads from memory."""
        inputs = (given for element in self.elements for given in element.inputs)
        return [view for given in inputs for view in views_of(given)]

    @property
    def writes(self) -> list[View]:
        """What it writes."""
        return [store for element in self.elements for store in element.stores]


def views_of(given: Input) -> list[View]:
    """Return what is read from memory for an operand."""
    if isinstance(given, View):
        return [given]
    if isinstance(given, Indirect):
        return [given.view, *views_of(given.index)]
    return []


@dataclass(eq=False, slots=True)
class Call:
    """A call of a C function of this step, or a check.

    Args:
        body: The function's body; its parameters are ``p0``, ``p1`` and so on.
        reads: What it reads, the first of its parameters.
        writes: What it writes, the others.
        number: Its place among the statements.
        checks: Whether it returns a status, other than 0 where the step must end.
        operations: How often it multiplies and adds, or moves a number.
        most_parts: In how many parts it can be done: the body does the part `part` of `parts`.
    """

    body: str
    reads: tuple[View, ...]
    writes: tuple[View, ...]
    number: int
    checks: bool = False
    operations: float = 0
    most_parts: int = 1


Statement = Loop | Call


@dataclass(slots=True)
class Program:
    """A whole step.

    Args:
        arguments: The caller's tensors in order; results come after what the traced function took.
        statements: What is done, in order.
        kept: What is read afterwards, of a part.
        part: What is done before, for each part of the samples.
    """

    arguments: list[Buffer]
    statements: list[Statement]
    kept: list[View] = field(default_factory=list)
    part: Part | None = None


@dataclass(slots=True)
class Part:
    """What a step does for each part of its samples.

    Args:
        program: It, with the arguments of the whole, some of them shorter, or also as a whole.
        parts: How many parts there are.
        sources: Number of the argument of the whole that each of its arguments is.
        offsets: Bytes of each from one part to the next.
        sums: Buffers that it keeps, each with those that the rest of the step reads, one a part.
    """

    program: Program
    parts: int
    sources: tuple[int, ...]
    offsets: tuple[int, ...]
    sums: dict[Buffer, list[Buffer]]


def merge_dims(
    shape: Sequence[int], order: Sequence[int], accesses: Sequence[Sequence[int]], fixed: set[int]
) -> list[tuple[int, list[int]]]:
    """Return as few loops as run over a shape, from the outermost on.

    Args:
        shape: Sizes of the dimensions.
        order: The dimensions from the outermost on.
        accesses: Strides of everything that is read or written, per dimension.
        fixed: Dimensions that need a loop of their own.

    Returns:
        Size of each loop, and the dimensions that it runs over.
    """
    nest: list[tuple[int, list[int]]] = []
    for dim in order:
        size = shape[dim]
        if size == 1:
            continue
        if nest and dim not in fixed and nest[-1][1][-1] not in fixed:
            outer_size, dims = nest[-1]
            if all(strides[dims[-1]] == strides[dim] * size for strides in accesses):
                nest[-1] = (outer_size * size, [*dims, dim])
                continue
        nest.append((size, [dim]))
    return nest


def loops_over(shape: Sequence[int], dims: Iterable[int] | None = None) -> str:
    """Return loops over dimensions of a shape as C: the index of each is ``i`` and its number."""
    return "".join(
        f"for (long i{dim} = 0; i{dim} < {shape[dim]}; i{dim}++) "
        for dim in (range(len(shape)) if dims is None else dims)
    )


def contiguous(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the strides of a dense tensor, with its dimensions in an order in memory."""
    strides, size = [0] * len(shape), 1
    for dim in reversed(order if order is not None else range(len(shape))):
        strides[dim] = size
        size *= shape[dim]
    return tuple(strides)


def count(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)

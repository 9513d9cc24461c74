"""The intermediate form of a generated step: buffers, views of them, and statements in order.

A step writes every buffer once, except arguments. Loops hold fused pointwise operators of one
shape; all other operators (products, convolutions) are calls of kernels. Statements that differ
only in buffers share one C function: the code of a recurrent net does not grow with its sequence.
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
    """A step contains an operator, dtype or layout without generated code."""


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory of one tensor.

    Args:
        dtype: Type of its elements.
        size: Number of used elements.
        argument: Its number among the caller's tensors; None for memory of the step.
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
        buffer: The buffer.
        shape: Its sizes.
        strides: Elements from one index to the next, per dimension; 0 for a broadcast dimension.
        offset: Number of the buffer's element at which the view begins.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the elements."""
        return self.buffer.dtype

    def permuted(self, dims: Sequence[int]) -> View:
        """Return the view with its dimensions in another order."""
        shape, strides = (tuple(of[dim] for dim in dims) for of in (self.shape, self.strides))
        return View(self.buffer, shape, strides, self.offset)

    def expanded(self, shape: Sequence[int]) -> View:
        """Return the view broadcast to a shape."""
        new = len(shape) - len(self.shape)
        assert new >= 0, f"{self.shape} as {shape}"
        strides = tuple(
            0 if dim < new or self.shape[dim - new] == 1 else self.strides[dim - new]
            for dim in range(len(shape))
        )
        return View(self.buffer, tuple(shape), strides, self.offset)

    def sliced(self, dim: int, start: int, size: int, step: int = 1) -> View:
        """Return a slice of the view along one dimension."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[dim]
        shape[dim], strides[dim] = size, strides[dim] * step
        return View(self.buffer, tuple(shape), tuple(strides), offset)

    def selected(self, dim: int, index: int) -> View:
        """Return the view at one index of a dimension, without that dimension."""
        part = self.sliced(dim, index, 1)
        keep = [d for d in range(len(self.shape)) if d != dim]
        return part.permuted(keep)

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """Return the view in another shape; None if that needs a copy."""
        if 0 in self.shape:
            return View(self.buffer, tuple(shape), contiguous(shape), self.offset)
        meta = torch.empty_strided(self.shape, self.strides, device="meta")
        try:
            strides = meta.view(tuple(shape)).stride()
        except RuntimeError:
            return None
        return View(self.buffer, tuple(shape), tuple(strides), self.offset)

    def address(self, indices: Sequence[int] | None = None) -> str:
        """Return an element's offset as C; `indices` number the loop variable of each dimension."""
        numbers = range(len(self.shape)) if indices is None else indices
        pairs = zip(numbers, self.strides, strict=True)
        return " + ".join(f"i{number} * {stride}" for number, stride in pairs if stride) or "0"

    def order(self) -> tuple[int, ...]:
        """Return the dimensions from the outermost in memory to the innermost."""
        return tuple(sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim]))


@dataclass(frozen=True, slots=True)
class Const:
    """A tensor filled with one number that the generator knows."""

    value: float
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, value: float, shape: Sequence[int], dtype: torch.dtype) -> Const:
        """Return a constant tensor of a number converted to a dtype.

        Raises:
            UnsupportedError: The dtype has no C type or cannot hold the number.
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
        inputs: The operands.
        shape: The loop's shape.
        dtype: Type of the result.
        loop: Its loop; None until its first use.
        stores: The views that the loop writes it to, for reads after the loop.
        kept: Its copy in memory, once there is one.
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
    """An element of a view whose index in one dimension is a value of the loop."""

    view: View
    dim: int
    index: Element | View | Const

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the view's elements."""
        return self.view.dtype


@dataclass(eq=False, slots=True)
class Joined:
    """Tensors concatenated along one dimension; copied together only for a reader of the whole.

    A recurrent layer changes each gate of a product separately; readers of one gate need no copy.

    Args:
        shape: Shape of the concatenation.
        dtype: Type of the elements.
        dim: The dimension of the concatenation.
        parts: The tensors in order.
        kept: The concatenation in memory, once there is one.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    dim: int
    parts: tuple[Value, ...]
    kept: View | None = None

    def slice(self, dim: int, start: int, size: int) -> Value | None:
        """Return a slice of one part, without a copy of the whole; None if there is none."""
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
        """The views that the loop reads from memory."""
        inputs = (given for element in self.elements for given in element.inputs)
        return [view for given in inputs for view in views_of(given)]

    @property
    def writes(self) -> list[View]:
        """The views that the loop writes."""
        return [store for element in self.elements for store in element.stores]


def views_of(given: Input) -> list[View]:
    """Return the views that an operand reads from memory."""
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
        reads: The views that it reads, its first parameters.
        writes: The views that it writes, its other parameters.
        number: Its place among the statements.
        checks: Whether it returns a status; a nonzero status ends the step.
        operations: Number of its multiply-adds or moves of a number.
        most_parts: Its largest number of parts; the body does part `part` of `parts`.
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
        arguments: The caller's tensors in order: the traced function's arguments, then its results.
        statements: The statements in order.
        kept: For the program of a part, the results that the rest of the step reads.
        part: The work before the statements for each part of the samples; None if undivided.
    """

    arguments: list[Buffer]
    statements: list[Statement]
    kept: list[View] = field(default_factory=list)
    part: Part | None = None


@dataclass(slots=True)
class Part:
    """The work of a step for each part of its samples.

    Args:
        program: The program of a part. Its arguments are those of the whole step, some of them
            shorter, then some of them again in full.
        parts: Number of parts.
        sources: For each of its arguments, the number of the whole step's argument.
        offsets: For each of its arguments, the bytes from one part to the next.
        sums: For each buffer that it keeps, the buffers that the rest reads, one for each part.
    """

    program: Program
    parts: int
    sources: tuple[int, ...]
    offsets: tuple[int, ...]
    sums: dict[Buffer, list[Buffer]]


def merge_dims(
    shape: Sequence[int], order: Sequence[int], accesses: Sequence[Sequence[int]], fixed: set[int]
) -> list[tuple[int, list[int]]]:
    """Return the smallest nest of loops over a shape, from the outermost on.

    Args:
        shape: Sizes of the dimensions.
        order: The dimensions from the outermost on.
        accesses: Strides of all reads and writes, per dimension.
        fixed: Dimensions that need a separate loop.

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
    """Return loops over dimensions of a shape as C, with index ``i0`` for dimension 0."""
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

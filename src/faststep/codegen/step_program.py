"""A traced step as a program, by parts of its samples where that is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from faststep.codegen.dividing import Divided, Division
from faststep.codegen.lowering import Lowering
from faststep.codegen.program import Buffer, Part, Program
from faststep.codegen.samples import IndivisibleError
from faststep.codegen.sharing import choose_sample_parts


def lower(
    graph: fx.GraphModule, lanes: int, late: Sequence[int], batch: Sequence[int] = ()
) -> Program:
    """Return a traced function of tensors as a program.

    Args:
        graph: What ``make_fx`` traced; its arguments and results are tensors, and it writes to
            arguments by ``copy_`` alone.
        lanes: Elements of float32 in a vector.
        late: Numbers of the arguments that only the update reads: state of the optimizer, numbers
            of the update.
        batch: Numbers of the arguments that have samples along their first dimension, by which
            the step may be divided.

    Raises:
        UnsupportedError: It holds an operator, type or layout that is not covered; names it.
    """
    if batch:
        divided = _lower_divided(graph, lanes, late, batch)
        if divided is not None:
            return divided
    return Lowering(graph.graph, graph, lanes, late).run()


def _lower_divided(
    graph: fx.GraphModule, lanes: int, late: Sequence[int], batch: Sequence[int]
) -> Program | None:
    """Return a program that is done by parts of its samples; None where that is no use."""
    try:
        division = Division(graph.graph, set(batch))
    except IndivisibleError:
        return None

    def lowered(parts: int) -> tuple[Divided, Program]:
        divided = division.divide(parts)
        return divided, Lowering(divided.part, graph, lanes, late).run_part()

    if division.num_samples % 2:
        return None
    divided, part = lowered(2)
    parts = choose_sample_parts(part, division.num_samples, lanes)
    if not parts:
        return None
    if parts != 2:
        divided, part = lowered(parts)
    buffers = {
        view.buffer: [Buffer(view.dtype, view.buffer.size) for _ in range(parts)]
        for view in part.kept
    }
    sums = [[replace(view, buffer=one) for one in buffers[view.buffer]] for view in part.kept]
    program = Lowering(divided.rest, graph, lanes, late, sums).run()
    offsets = tuple(
        offset * argument.dtype.itemsize
        for offset, argument in zip(divided.offsets, part.arguments, strict=True)
    )
    program.part = Part(part, parts, divided.sources, offsets, buffers)
    return program

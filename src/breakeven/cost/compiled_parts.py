"""What an operator is to Inductor's scheduler: loops that may share a kernel, or a library's call.

Most operators are one loop. A batch norm is two, since its statistics must be known before any of
them is applied; a convolution's bias is a loop after the library's call. Inputs that are only asked
for their shape are not read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.cost.kernel import Family, Kernel, Lowering
from breakeven.cost.lower_optimizer import is_foreach_loop, lists_of
from breakeven.cost.lower_reduction import reduced_dimensions
from breakeven.cost.rules import base_name
from breakeven.trace import Op, TensorSpec

# Calls of libraries, or algorithms that are no loop over points.
_LIBRARY = frozenset(
    {
        Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT,
        Family.SORT, Family.LINALG,
    }
)  # fmt: skip
_LIBRARY_VARIANTS = frozenset({"scan", "ctc"})
# A row up to this many elements stays in registers, or at worst in the next cache, between its
# reduction and what is done with it. Source: torch/_inductor/runtime/triton_heuristics.py, which
# makes reductions of up to 1,024 elements persistent and loops over others in blocks of 2,048.
_LONGEST_KEPT_ROW = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A loop of an operator, or its call of a library.

    Args:
        reads: Tensors read.
        writes: Tensors written.
        numel: Points of the loop; 0 of a library's call.
        rows: Results of a reduction; 0 of a pointwise loop.
        keeps_row: What the reduction has read is at hand for what follows from its results.
        reads_memory: What it reads must be in memory: it is read at other places, or several times.
        most_read_bytes: No tensor is read beyond this: of a table some rows are gathered.
        is_random: It draws random numbers, which nobody can draw again.
        flop: Arithmetic.
    """

    reads: tuple[TensorSpec, ...]
    writes: tuple[TensorSpec, ...]
    numel: int = 0
    rows: int = 0
    keeps_row: bool = False
    reads_memory: bool = False
    most_read_bytes: float = math.inf
    is_random: bool = False
    flop: float = 0.0

    @property
    def is_library(self) -> bool:
        """Return whether nothing shares a kernel with it."""
        return not self.numel


def parts_of(op: Op, lowering: Lowering, *, is_channels_last: bool = False) -> tuple[Part, ...]:
    """Return the parts of an operator that runs kernels.

    Args:
        op: The operator.
        lowering: Its kernels in eager mode.
        is_channels_last: Images lie in channels-last memory, whatever the operator says.
    """
    kernels = lowering.kernels
    families = {kernel.family for kernel in kernels}
    name = base_name(op.name)
    if is_foreach_loop(op):
        # Inductor takes the tensors of all lists through one kernel, as the scheduler's foreach.
        return (_foreach(op, kernels),)
    library = Part(reads=op.inputs, writes=op.outputs)
    if name in ("convolution", "_convolution") and len(op.inputs) > 2 and len(kernels) > 1:
        # The bias is added by whatever follows.
        call = Part(reads=op.inputs[:2], writes=op.outputs)
        return call, _loop(kernels[1:], (op.outputs[0], op.inputs[2]), op.outputs)
    if (
        lowering.caveat is not None
        or not op.outputs
        or families & _LIBRARY
        or any(kernel.variant in _LIBRARY_VARIANTS for kernel in kernels)
        or any(kernel.variant == "multi_tensor" for kernel in kernels)
    ):
        return (library,)
    if name.startswith("nll_loss") and name.endswith("backward"):
        return (_loop(kernels, op.inputs[2:3], op.outputs[:1]),)
    if any(kernel.variant == "scatter" for kernel in kernels):
        return (library,)
    if Family.NORMALIZATION in families:
        return _normalization(op, kernels)
    if Family.SOFTMAX in families:
        return _softmax(op, kernels)
    if Family.POOLING in families:
        return (_pooling(op, kernels, is_channels_last=is_channels_last),)
    if Family.REDUCTION in families:
        return (_reduction(op, kernels, is_channels_last=is_channels_last),)
    is_gather = Family.GATHER in families
    read_bytes = max(kernel.read_bytes for kernel in kernels)
    # A copy in place, a fill and random numbers read nothing of what they overwrite.
    reads = () if read_bytes == 0 else op.inputs[1:] if name == "copy" else op.inputs
    result_bytes = max(spec.num_bytes for spec in op.outputs)
    return (
        _loop(
            kernels,
            reads,
            op.outputs,
            reads_memory=is_gather or name.startswith("upsample"),
            most_read_bytes=float(result_bytes) if is_gather else math.inf,
        ),
    )


def _loop(
    kernels: Sequence[Kernel],
    reads: tuple[TensorSpec, ...],
    writes: tuple[TensorSpec, ...],
    *,
    reads_memory: bool = False,
    most_read_bytes: float = math.inf,
) -> Part:
    return Part(
        reads=reads,
        writes=writes,
        numel=max((spec.numel for spec in writes), default=0),
        reads_memory=reads_memory,
        most_read_bytes=most_read_bytes,
        is_random=any(kernel.variant == "random" for kernel in kernels),
        flop=_flop(kernels),
    )


def _foreach(op: Op, kernels: Sequence[Kernel]) -> Part:
    lists = lists_of(op)
    return Part(
        reads=tuple(spec for tensors in lists.read for spec in tensors),
        writes=tuple(lists.written),
        numel=sum(spec.numel for spec in lists.written),
        flop=_flop(kernels),
    )


def _flop(kernels: Sequence[Kernel]) -> float:
    return sum(kernel.flop for kernel in kernels)


def _statistics(source: TensorSpec, num_rows: int) -> TensorSpec:
    """Return the results of a reduction that the next part of its operator reads."""
    return TensorSpec(shape=(num_rows,), dtype="float32", device=source.device)


def _reduction(op: Op, kernels: Sequence[Kernel], *, is_channels_last: bool) -> Part:
    source = max(op.inputs, key=lambda spec: spec.numel)
    rows = max(1, op.outputs[0].numel)
    is_outer = (
        _reduces_outside(op)
        if is_channels_last and len(source.shape) == 4
        else any(kernel.variant == "outer" for kernel in kernels)
    )
    return Part(
        reads=op.inputs,
        writes=op.outputs,
        numel=source.numel,
        rows=rows,
        keeps_row=not is_outer and source.numel <= rows * _LONGEST_KEPT_ROW,
        flop=_flop(kernels),
    )


def _reduces_outside(op: Op) -> bool:
    """Return whether what a reduction of images keeps lies inside, in channels-last memory.

    There the channels of a pixel lie together, and the pixels of a channel apart.
    """
    if dims := reduced_dimensions(op):
        return 1 not in dims
    return math.prod(op.outputs[0].shape) > 1  # all of it, or, of a pooling, all pixels


def _pooling(op: Op, kernels: Sequence[Kernel], *, is_channels_last: bool) -> Part:
    """Return a pooling; over whole images it is a mean, as Inductor decomposes it."""
    is_backward, reads = "backward" in op.name, op.inputs
    if "adaptive" in op.name and not is_backward and math.prod(op.outputs[0].shape[-2:]) == 1:
        return _reduction(op, kernels, is_channels_last=is_channels_last)
    if is_backward:
        # Of the input, the second argument, the gradient takes only the shape.
        reads = (*reads[:1], *reads[2:])
    return _loop(kernels, reads, op.outputs, reads_memory=True)


def _softmax(op: Op, kernels: Sequence[Kernel]) -> tuple[Part, ...]:
    source = op.inputs[0]
    dim = int(op.attributes.get("dim", -1)) % max(1, len(source.shape)) if source.shape else 0
    length = source.shape[dim] if source.shape else 1
    return _rowwise(op, kernels, op.inputs[:2], op.outputs[:1], max(1, source.numel // length))


def _rowwise(
    op: Op,
    kernels: Sequence[Kernel],
    reads: tuple[TensorSpec, ...],
    writes: tuple[TensorSpec, ...],
    rows: int,
    statistics: tuple[TensorSpec, ...] = (),
) -> tuple[Part, ...]:
    """Return what reduces each row, then writes all of it: one loop where the row is kept."""
    source = op.inputs[0]
    statistics = statistics or (_statistics(source, rows),)
    reduction = Part(
        reads=reads,
        writes=statistics,
        numel=source.numel,
        rows=rows,
        keeps_row=source.numel <= rows * _LONGEST_KEPT_ROW,
        flop=_flop(kernels),
    )
    return reduction, Part(reads=(*reads, *statistics), writes=writes, numel=source.numel)


def _normalization(op: Op, kernels: Sequence[Kernel]) -> tuple[Part, ...]:
    source, variant = op.inputs[0], kernels[0].variant
    if variant.startswith("weight") or len(source.shape) < 2:
        return (Part(reads=op.inputs, writes=op.outputs),)
    is_backward = variant.endswith("backward")
    large = tuple(spec for spec in op.outputs if spec.shape == source.shape)
    small = tuple(spec for spec in op.outputs if spec.shape != source.shape)
    if variant.startswith(("layer", "rms")) and not is_backward:
        rows = max(
            1, op.outputs[1].numel if len(op.outputs) > 1 else source.numel // source.shape[-1]
        )
        return _rowwise(op, kernels, op.inputs, large, rows, small)
    if variant.startswith(("layer", "rms")):
        rows = max(1, source.numel // source.shape[-1])
        parts = _rowwise(op, kernels[:1], op.inputs, large, rows) if large else ()
        if small:
            # Sums over all rows, for which gradient and input are read once more.
            parts = (
                *parts,
                Part(
                    reads=op.inputs[:4],
                    writes=small,
                    numel=source.numel,
                    rows=source.shape[-1],
                    flop=_flop(kernels[1:]),
                ),
            )
        return parts
    if variant.startswith("group"):
        rows = max(1, op.outputs[-1].numel if not is_backward else source.shape[0])
    else:
        rows = source.shape[1]
    statistics = _statistics(source, 2 * rows)
    sources = op.inputs[: 2 if is_backward else 1]
    return (
        Part(
            reads=op.inputs,
            writes=(*small, statistics),
            numel=source.numel,
            rows=rows,
            flop=_flop(kernels),
        ),
        Part(reads=(*sources, statistics), writes=large, numel=source.numel if large else 0),
    )

"""What compiled code runs, and what an operator is to Inductor's scheduler.

``compiled.fused`` is one generated kernel over flat tensors; ``compiled.call`` enters a compiled
graph; ``compiled.aten.mm.default`` is an operator that compiled code calls.

To the scheduler an operator is a call of a library, or loops that may share a kernel. Most are one
loop. A batch norm is two, since its statistics must be known before any of them is applied; a
convolution's bias is a loop after the library's call. Inputs that are only asked for their shape
are not read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from breakeven.cost.kernel import ALIGNED_BYTES, Family, Kernel, Lowering
from breakeven.cost.lower_matmul import unaligned_operands
from breakeven.cost.lower_optimizer import is_foreach_loop, lists_of
from breakeven.cost.lower_reduction import reduced_dimensions
from breakeven.cost.roofline import MATRIX_FAMILIES
from breakeven.cost.rules import RuleTable, base_name, streaming_kernel, total_bytes
from breakeven.device import Precision
from breakeven.trace import Op, TensorSpec

RULES = RuleTable()

FUSED = "compiled.fused.default"
CALL = "compiled.call.default"
_PREFIX = "compiled."
# A reduction to fewer rows than this is split, and its parts are reduced by a second kernel.
# Source: torch/_inductor/ir.py, Reduction.num_splits.
_FEWEST_ROWS = 512
_LONGEST_WHOLE_ROW = 8_192
# A kernel over the tensors of many parameters takes so many at once.
# Source: torch/_inductor/config.py, combo_kernel_max_num_args.
_MOST_TENSORS = 250

# What generated kernels take over the model of torch's own loops at the same traffic, which
# benchmarks of eager operators do not tell: those that keep the rows they reduce, such as a layer
# norm with what is around it, and all others. Fitted to 145 pairs of eager and compiled steps of
# timm's classifiers (RTX 4090, torch 2.4, autocast; `benchmarks/compiled_pairs.py --fast-norm`):
# 81 % of the ratios are within 15 %. No kernel is taken past its device's bandwidth by them. They
# also make up for eager steps there, which are predicted a fifth too long.
_KEPT_ROW_FACTOR, _GENERATED_FACTOR = 0.6, 1.25

# Inductor pads products that arithmetic bounds: those with more FLOP for a byte than the device
# has, which it takes from the datasheet; this is the A100's. Source: torch/_inductor/fx_passes/
# pad_mm.py, is_mm_compute_bound; it also times both, which is not done here.
_LEAST_PADDED_INTENSITY = 150
_PADDED_PRECISIONS = frozenset({Precision.FP16, Precision.BF16, Precision.TF32})


def is_compiled(op_name: str) -> bool:
    """Return whether compiled code runs it."""
    return op_name.startswith(_PREFIX)


def is_library_call(op_name: str) -> bool:
    """Return whether it is an operator of torch that compiled code calls."""
    return is_compiled(op_name) and op_name not in (FUSED, CALL)


def compiled_name(op_name: str) -> str:
    """Return the name of an operator's call from compiled code."""
    return _PREFIX + op_name


def called_name(op_name: str) -> str:
    """Return the operator that a library call of compiled code is."""
    return op_name.removeprefix(_PREFIX)


@RULES.add("compiled.fused")
def _lower_fused(op: Op) -> Kernel:
    """Lower a generated kernel; its attributes are those of a `FusedKernel`."""
    numel, rows = int(op.attributes["numel"]), int(op.attributes["rows"])
    is_split = 0 < rows < _FEWEST_ROWS and numel > rows * _LONGEST_WHOLE_ROW
    num_tensors = len({spec.storage for spec in (*op.inputs, *op.outputs)})
    num_kernels = math.ceil(num_tensors / _MOST_TENSORS) or 1
    kernel = streaming_kernel(
        op,
        family=Family.REDUCTION if rows else Family.ELEMENTWISE,
        flop=float(op.attributes["flop"]),
        launches=2 * num_kernels if is_split else num_kernels,
        variant="fused",
    )
    factor = _KEPT_ROW_FACTOR if op.attributes["keeps_row"] else _GENERATED_FACTOR
    return msgspec.structs.replace(kernel, time_factor=factor)


@RULES.add("compiled.call")
def _lower_call(op: Op) -> tuple[Kernel, ...]:
    return ()


def padded_product(op: Op, kernel: Kernel) -> tuple[Kernel, ...]:
    """Return what Inductor calls for a product: rows that are not aligned are padded before.

    Args:
        op: What compiled code calls.
        kernel: What eager code would run for it; anything but such a product is left alone.
    """
    m, n, k = kernel.m, kernel.n, kernel.k
    if kernel.alignment_bytes in (0, ALIGNED_BYTES) or kernel.precision not in _PADDED_PRECISIONS:
        return (kernel,)
    if m * n * k < _LEAST_PADDED_INTENSITY * (m * n + n * k + m * k):
        return (kernel,)
    aligned = msgspec.structs.replace(kernel, alignment_bytes=ALIGNED_BYTES)
    operands = unaligned_operands(op)
    if not operands:  # the result is, and is cut by a view
        return (aligned,)
    copied_bytes = total_bytes(operands)
    copies = streaming_kernel(
        op, flop=0, read_bytes=copied_bytes, write_bytes=copied_bytes, launches=len(operands)
    )
    return copies, aligned


_LIBRARY = MATRIX_FAMILIES | {Family.SORT, Family.LINALG}
_LIBRARY_VARIANTS = frozenset({"scan", "ctc", "multi_tensor"})
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
    kernels, name = lowering.kernels, base_name(op.name)
    families, variants = (
        {kernel.family for kernel in kernels},
        {kernel.variant for kernel in kernels},
    )
    if is_foreach_loop(op):
        # Inductor takes the tensors of all lists through one kernel, as the scheduler's foreach.
        lists = lists_of(op)
        part = Part(
            reads=tuple(spec for tensors in lists.read for spec in tensors),
            writes=tuple(lists.written),
            numel=sum(spec.numel for spec in lists.written),
            flop=_flop(kernels),
        )
        return (part,)
    library = Part(reads=op.inputs, writes=op.outputs)
    bias = op.inputs[2:]
    if name in ("convolution", "_convolution") and bias and len(kernels) > 1:
        # It is added by whatever follows.
        call = Part(reads=op.inputs[:2], writes=op.outputs)
        return call, _loop(kernels[1:], (op.outputs[0], bias[0]), op.outputs)
    if lowering.caveat is not None or not op.outputs:
        return (library,)
    if families & _LIBRARY or variants & _LIBRARY_VARIANTS:
        return (library,)
    if name.startswith("nll_loss") and name.endswith("backward"):
        return (_loop(kernels, op.inputs[2:3], op.outputs[:1]),)
    if "scatter" in variants:
        return (library,)
    if Family.NORMALIZATION in families:
        return _normalization(op, kernels)
    if Family.SOFTMAX in families:
        source = op.inputs[0]
        length = source.shape[int(op.attributes.get("dim", -1))] if source.shape else 1
        rows = max(1, source.numel // length)
        return _rowwise(op, kernels, op.inputs[:2], op.outputs[:1], rows)
    is_mean = "adaptive" in op.name and math.prod(op.outputs[0].shape[-2:]) == 1
    if Family.POOLING in families and not (is_mean and "backward" not in op.name):
        # Of the input, the second argument, the gradient takes only the shape.
        reads = (*op.inputs[:1], *op.inputs[2:]) if "backward" in op.name else op.inputs
        return (_loop(kernels, reads, op.outputs, reads_memory=True),)
    # A pooling over whole images is a mean, as Inductor decomposes it.
    if families & {Family.POOLING, Family.REDUCTION}:
        return (_reduction(op, kernels, is_channels_last=is_channels_last),)
    is_gather = Family.GATHER in families
    read_bytes = max(kernel.read_bytes for kernel in kernels)
    # A copy in place, a fill and random numbers read nothing of what they overwrite.
    reads = () if read_bytes == 0 else op.inputs[1:] if name == "copy" else op.inputs
    result_bytes = max(spec.num_bytes for spec in op.outputs)
    loop = _loop(
        kernels,
        reads,
        op.outputs,
        reads_memory=is_gather or name.startswith("upsample"),
        most_read_bytes=float(result_bytes) if is_gather else math.inf,
    )
    return (loop,)


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


def _flop(kernels: Sequence[Kernel]) -> float:
    return sum(kernel.flop for kernel in kernels)


def _statistics(source: TensorSpec, num_rows: int) -> TensorSpec:
    """Return the results of a reduction that the next part of its operator reads."""
    return TensorSpec(shape=(num_rows,), dtype="float32", device=source.device)


def _reduction(op: Op, kernels: Sequence[Kernel], *, is_channels_last: bool) -> Part:
    source = max(op.inputs, key=lambda spec: spec.numel)
    rows = max(1, op.outputs[0].numel)
    is_outer = any(kernel.variant == "outer" for kernel in kernels)
    if is_channels_last and len(source.shape) == 4:
        # The channels of a pixel lie together, and the pixels of a channel apart. Without given
        # dimensions all of it is reduced, or, by a pooling, all pixels.
        dims = reduced_dimensions(op)
        is_outer = 1 not in dims if dims else math.prod(op.outputs[0].shape) > 1
    return Part(
        reads=op.inputs,
        writes=op.outputs,
        numel=source.numel,
        rows=rows,
        keeps_row=not is_outer and source.numel <= rows * _LONGEST_KEPT_ROW,
        flop=_flop(kernels),
    )


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
    is_backward, numel = variant.endswith("backward"), source.numel
    large = tuple(spec for spec in op.outputs if spec.shape == source.shape)
    small = tuple(spec for spec in op.outputs if spec.shape != source.shape)
    if variant.startswith(("layer", "rms")):
        width = source.shape[-1]
        if not is_backward:
            rows = op.outputs[1].numel if len(op.outputs) > 1 else numel // width
            return _rowwise(op, kernels, op.inputs, large, max(1, rows), small)
        rows = max(1, numel // width)
        parts = _rowwise(op, kernels[:1], op.inputs, large, rows) if large else ()
        if not small:
            return parts
        # Sums over all rows, for which gradient and input are read once more.
        flop = _flop(kernels[1:])
        sums = Part(reads=op.inputs[:4], writes=small, numel=numel, rows=width, flop=flop)
        return (*parts, sums)
    if variant.startswith("group"):
        rows = max(1, op.outputs[-1].numel if not is_backward else source.shape[0])
    else:
        rows = source.shape[1]
    statistics = _statistics(source, 2 * rows)
    sources = op.inputs[: 2 if is_backward else 1]
    sums = Part(
        reads=op.inputs, writes=(*small, statistics), numel=numel, rows=rows, flop=_flop(kernels)
    )
    return sums, Part(reads=(*sources, statistics), writes=large, numel=numel if large else 0)

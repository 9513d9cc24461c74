"""Compiled code: its kernels, and the parts of an operator in Inductor's scheduler.

``compiled.fused`` is one generated kernel over flat tensors; ``compiled.call`` enters a compiled
graph; ``compiled.aten.mm.default`` is an operator that compiled code calls.

To the scheduler an operator is a library call, or loops that may share a kernel. Most operators are
one loop. A batch norm is two, since it applies its statistics only after all of them are known. A
convolution's bias is a loop after the library call. Inputs that only provide a shape are not read.
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
# Largest number of tensors that one kernel over many parameters takes.
# Source: torch/_inductor/config.py, combo_kernel_max_num_args.
_MOST_TENSORS = 250

# Time of generated kernels over the model of torch's own loops at the same traffic, which
# benchmarks of eager operators do not show. The first is for kernels that keep the rows they
# reduce, such as a layer norm with its surroundings, the second for all others. Fitted to 145 pairs
# of eager and compiled steps of timm's classifiers (RTX 4090, torch 2.4, autocast;
# `benchmarks/compiled_pairs.py --fast-norm`): 81 % of the ratios are within 15 %. With them no
# kernel exceeds its device's bandwidth. They also compensate for eager steps there, which are
# predicted a fifth too long.
_KEPT_ROW_FACTOR, _GENERATED_FACTOR = 0.6, 1.25

# Inductor pads products that arithmetic bounds: those with more FLOP per byte than the device, by
# its datasheet; this is the A100's. Source: torch/_inductor/fx_passes/pad_mm.py,
# is_mm_compute_bound; Inductor also times both, which this model does not.
_LEAST_PADDED_INTENSITY = 150
_PADDED_PRECISIONS = frozenset({Precision.FP16, Precision.BF16, Precision.TF32})


def is_compiled(op_name: str) -> bool:
    """Return whether compiled code runs this operator."""
    return op_name.startswith(_PREFIX)


def is_library_call(op_name: str) -> bool:
    """Return whether compiled code calls this operator of torch."""
    return is_compiled(op_name) and op_name not in (FUSED, CALL)


def compiled_name(op_name: str) -> str:
    """Return the name of an operator's call from compiled code."""
    return _PREFIX + op_name


def called_name(op_name: str) -> str:
    """Return the operator behind a library call of compiled code."""
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
    """Return Inductor's kernels for a product, which pad unaligned rows first.

    Args:
        op: Operator that compiled code calls.
        kernel: Its kernel in eager code; kernels that are not such a product stay unchanged.
    """
    m, n, k = kernel.m, kernel.n, kernel.k
    if kernel.alignment_bytes in (0, ALIGNED_BYTES) or kernel.precision not in _PADDED_PRECISIONS:
        return (kernel,)
    if m * n * k < _LEAST_PADDED_INTENSITY * (m * n + n * k + m * k):
        return (kernel,)
    aligned = msgspec.structs.replace(kernel, alignment_bytes=ALIGNED_BYTES)
    operands = unaligned_operands(op)
    if not operands:  # only the result is unaligned, and a view cuts it
        return (aligned,)
    copied_bytes = total_bytes(operands)
    copies = streaming_kernel(
        op, flop=0, read_bytes=copied_bytes, write_bytes=copied_bytes, launches=len(operands)
    )
    return copies, aligned


_LIBRARY = MATRIX_FAMILIES | {Family.SORT, Family.LINALG}
_LIBRARY_VARIANTS = frozenset({"scan", "ctc", "multi_tensor"})
# A row of up to this many elements stays in registers, or at worst in the next cache, between its
# reduction and the use of the result. Source: torch/_inductor/runtime/triton_heuristics.py, which
# makes reductions of up to 1,024 elements persistent and loops over longer ones in blocks of 2,048.
_LONGEST_KEPT_ROW = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A loop of an operator, or its library call.

    Args:
        reads: Tensors read.
        writes: Tensors written.
        numel: Points of the loop; 0 for a library call.
        rows: Results of a reduction; 0 for a pointwise loop.
        keeps_row: The inputs of the reduction are still available when its results are used.
        reads_memory: Its inputs must be in memory: it reads them at other places, or several times.
        most_read_bytes: Largest size read of a tensor: a gather reads some rows of a table.
        is_random: It draws random numbers, which cannot be drawn again.
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
        """Return whether it is a library call, which shares no kernel."""
        return not self.numel


def parts_of(op: Op, lowering: Lowering, *, is_channels_last: bool = False) -> tuple[Part, ...]:
    """Return the parts of an operator that runs kernels.

    Args:
        op: The operator.
        lowering: Its kernels in eager mode.
        is_channels_last: Images are in channels-last memory, whatever the operator's layout.
    """
    kernels, name = lowering.kernels, base_name(op.name)
    families, variants = (
        {kernel.family for kernel in kernels},
        {kernel.variant for kernel in kernels},
    )
    if is_foreach_loop(op):
        # Inductor runs the tensors of all lists through one kernel, the scheduler's foreach.
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
        # The next kernel adds the bias.
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
        # The gradient uses only the shape of the input, which is the second argument.
        reads = (*op.inputs[:1], *op.inputs[2:]) if "backward" in op.name else op.inputs
        return (_loop(kernels, reads, op.outputs, reads_memory=True),)
    # A pooling over whole images is a mean, as Inductor decomposes it.
    if families & {Family.POOLING, Family.REDUCTION}:
        return (_reduction(op, kernels, is_channels_last=is_channels_last),)
    is_gather = Family.GATHER in families
    read_bytes = max(kernel.read_bytes for kernel in kernels)
    # Copies in place, fills and random numbers do not read the tensor that they overwrite.
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
        # The channels of a pixel are adjacent, and the pixels of a channel are not. Without
        # dimensions, the reduction covers all elements, or, for a pooling, all pixels.
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
    """Return a reduction of each row and a loop over all points; a kept row makes them one."""
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
        # Sums over all rows read gradient and input once more.
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

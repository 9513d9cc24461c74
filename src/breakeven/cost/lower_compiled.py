"""What compiled code runs: generated kernels, and calls of libraries without what is around them.

``compiled.fused`` is one generated kernel over flat tensors; ``compiled.call`` enters a compiled
graph; ``compiled.aten.mm.default`` is an operator that compiled code calls.
"""

from __future__ import annotations

import math

import msgspec

from breakeven.cost.kernel import ALIGNED_BYTES, Family, Kernel
from breakeven.cost.lower_matmul import unaligned_operands
from breakeven.cost.rules import RuleTable, streaming_kernel, total_bytes
from breakeven.device import Precision
from breakeven.trace import Op

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

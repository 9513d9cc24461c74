"""What compiled code runs: generated kernels, and calls of libraries without what is around them.

``compiled.fused`` is one generated kernel over flat tensors; ``compiled.call`` enters a compiled
graph; ``compiled.aten.mm.default`` is an operator that compiled code calls.
"""

from __future__ import annotations

import msgspec

from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.rules import RuleTable, streaming_kernel
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

# Two numbers that benchmarks of eager operators do not tell: what a generated reduction takes over
# torch's own at the same traffic, and a convolution on matrix units over the same in a step whose
# tensors stay in channels-last order. Fitted to 149 pairs of eager and compiled steps of timm's
# classifiers (RTX 4090, torch 2.4, autocast; `benchmarks/compiled_pairs.py`). Fitted to half of the
# families of architectures, 75 % of the ratios of the other half are within 15 %; 68 % without.
_REDUCTION_FACTOR = 1.2
_CONVOLUTION_FACTOR = 0.9


def is_compiled(op_name: str) -> bool:
    """Return whether compiled code runs it."""
    return op_name.startswith(_PREFIX)


def is_library_call(op_name: str) -> bool:
    """Return whether it is an operator of torch that compiled code calls."""
    return is_compiled(op_name) and op_name not in (FUSED, CALL)


def as_called(op: Op, kernel: Kernel) -> Kernel:
    """Return a kernel of an operator as it runs within compiled code."""
    is_convolution = kernel.family is Family.CONVOLUTION and op.inputs[0].layout == "channels_last"
    if not is_convolution or kernel.precision in (Precision.FP32, Precision.FP64):
        return kernel
    return msgspec.structs.replace(kernel, time_factor=_CONVOLUTION_FACTOR)


def called_name(op_name: str) -> str:
    """Return the operator that a library call of compiled code is."""
    return op_name.removeprefix(_PREFIX)


@RULES.add("compiled.fused")
def _lower_fused(op: Op) -> Kernel:
    """Lower a generated kernel; its attributes are those of a `FusedKernel`."""
    numel, rows = int(op.attributes["numel"]), int(op.attributes["rows"])
    is_split = 0 < rows < _FEWEST_ROWS and numel > rows * _LONGEST_WHOLE_ROW
    kernel = streaming_kernel(
        op,
        family=Family.REDUCTION if rows else Family.ELEMENTWISE,
        flop=float(op.attributes["flop"]),
        launches=2 if is_split else 1,
        variant="fused",
    )
    return msgspec.structs.replace(kernel, time_factor=_REDUCTION_FACTOR) if rows else kernel


@RULES.add("compiled.call")
def _lower_call(op: Op) -> tuple[Kernel, ...]:
    return ()

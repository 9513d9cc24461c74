"""CPU006: on the CPU most of the step is spent on calling operators.

What it does:
    Multiplies the number of operators with what Python, the dispatcher and autograd take for
    one on this machine, and compares with the measured step.

Why it costs time:
    Each operator costs a microsecond or more before it computes anything. With small tensors
    that is most of the step, on the CPU as on a GPU.

Evidence:
    The cost of one operator, measured on this machine, and the measured step.

Fix:
    Fewer operators: ``torch.compile`` merges elementwise ones, ``fused=True`` updates all
    parameters at once, a larger batch makes each one count.

    ```python
    optimizer = torch.optim.Adam(model.parameters())
    ```

    ```python
    model = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    ```

Known limits:
    The gain shown is the share of the operators that a compiler can merge; its interval goes
    from nothing to all of the calls' time. Compiled code checks its assumptions in each call,
    which took some 0.3 ms in one public report.
"""

from __future__ import annotations

from typing import Final

from breakeven.cost import Family
from breakeven.doctor.rule import Case, Found, KnownGain, Occurrence
from breakeven.simulate import Side
from breakeven.units import format_duration, format_percent

CAUSE = "EAGER_OVERHEAD"

_MIN_EAGER_FRACTION = 0.5

# What a compiler merges into the loops of its neighbours.
_FUSABLE: Final = (Family.ELEMENTWISE, Family.REDUCTION, Family.NORMALIZATION, Family.SOFTMAX)


def detect(case: Case) -> Found:
    cpu, num_ops = case.cpu, len(case.trace.ops)
    if cpu is None or cpu.dispatch_ns <= 0 or cpu.estimate.value_ns <= 0:
        return
    share = min(1.0, num_ops * cpu.dispatch_ns / cpu.estimate.value_ns)
    if share < _MIN_EAGER_FRACTION or case.trace.settings.is_compiled:
        return
    yield Occurrence(
        title=f"on the CPU calling {num_ops} operators takes {format_percent(share)} of the step",
        fix="torch.compile, fused=True in the optimizer, a larger batch",
        evidence=f"{num_ops} operators at {format_duration(cpu.dispatch_ns)} each, in a "
        f"step of {format_duration(cpu.estimate.value_ns)}",
        gain=KnownGain(
            fraction=share * _mergeable_fraction(case), low_fraction=0.0, high_fraction=share
        ),
        share_fraction=share,
        side=Side.CPU,
    )


def _mergeable_fraction(case: Case) -> float:
    """Return the part of the operators that a compiler can merge with their neighbours."""
    lowered = [lowering for lowering in case.program.lowerings if lowering is not None]
    mergeable = sum(
        all(kernel.family in _FUSABLE for kernel in lowering.kernels) for lowering in lowered
    )
    return mergeable / len(lowered) if lowered else 0.0

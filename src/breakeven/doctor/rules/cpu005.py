"""CPU005: the processor multiplies bfloat16 in hardware, and the step is in float32.

What it does:
    Reports when matrix products and convolutions in float32 take most of the operators' time on
    a processor with AMX or AVX512-BF16.

Why it costs time:
    Such processors multiply bfloat16 at 2 to 16 times the rate of float32 on paper.

Evidence:
    The processor's features, and the operators' times in the recorded step.

Fix:
    Autocast works on the CPU too.

    ```python
    loss = criterion(model(x), y)
    ```

    ```python
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
    ```

Known limits:
    Nothing is measured: the gain is at most the products' share of the step, and may be none.
"""

from __future__ import annotations

from breakeven.cost import Family
from breakeven.doctor.events import PRODUCTS
from breakeven.doctor.rule import Case, Found, KnownGain, Occurrence
from breakeven.simulate import Side
from breakeven.trace import Op
from breakeven.units import format_percent

CAUSE = "CPU_PRECISION"

# Part of the operators' time from which products are what the CPU is busy with.
_MIN_PRODUCT_FRACTION = 0.5

_PRODUCTS = PRODUCTS - {Family.RECURRENT}


def detect(case: Case) -> Found:
    if case.cpu is None or not case.cpu.has_bf16 or case.trace.settings.autocast_dtype:
        return
    products = {
        index: op
        for index, op in case.each(Op)
        if any(kernel.family in _PRODUCTS for kernel in case.kernels_of(index))
        and any(spec.dtype == "float32" for spec in op.inputs)
    }
    products_ns = sum(op.host_ns for op in products.values())
    total_ns = sum(op.host_ns for op in case.trace.ops)
    if total_ns <= 0 or products_ns < _MIN_PRODUCT_FRACTION * total_ns:
        return
    share = min(1.0, products_ns / total_ns)
    yield Occurrence(
        title=f"{case.cpu.name} multiplies bfloat16 in hardware, the step is in float32",
        fix='torch.autocast("cpu", dtype=torch.bfloat16) where it trains on the CPU',
        evidence=f"{len(products)} products in float32 take {format_percent(share)} of the "
        "operators' time on this CPU",
        events=tuple(products),
        gain=KnownGain(fraction=0.0, low_fraction=0.0, high_fraction=share),
        share_fraction=share,
        side=Side.CPU,
    )

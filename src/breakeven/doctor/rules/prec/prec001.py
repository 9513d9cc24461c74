"""PREC001: the step computes in float64.

What it does:
    Finds matrix products, convolutions and most other operators working on float64, and the
    line that makes the model or its data so.

Why it costs time:
    GPUs for data centres compute float64 at half or less of their rate for float32, all others
    at 1/32 to 1/64 of it, and tensor cores are out of reach. Twice the bytes move, too.

Evidence:
    In public reports kernels became up to 32 to 64 times faster on consumer cards. It mostly
    begins by accident: NumPy's arrays are float64, and an error about dtypes is "solved" by
    ``.double()`` or ``set_default_dtype``.

Fix:
    Convert the data once, when it is loaded; leave the model in float32.

    ```python
    x = torch.from_numpy(features)
    model = Net().double().to(device)
    ```

    ```python
    x = torch.from_numpy(features).float()
    model = Net().to(device)
    ```

Known limits:
    Whether the results need float64 is not known; some simulations and factorizations do.
    The gain shown is that of the whole step in float32, TF32 as torch's switches say.
"""

from __future__ import annotations

from typing import Final

from breakeven.cost import Family
from breakeven.device import Precision
from breakeven.doctor.device_times import (
    device_times_ns,
)
from breakeven.doctor.double_source import line_of_doubles
from breakeven.doctor.rule import Case, Occurrence
from breakeven.doctor.rules.prec.edits import doubles_as_floats
from breakeven.doctor.rules.prec.products import PRODUCTS
from breakeven.trace import Op
from breakeven.units import format_percent

CAUSE = "FP64"

_DOUBLES: Final = frozenset(("float64", "complex128"))
# Below that, float64 is a choice for some numbers (a sum, a small factorization) and no accident.
_MIN_DOUBLE_FRACTION = 0.5
_MIN_DOUBLE_TIME_FRACTION = 0.1


def detect(case: Case) -> tuple[Occurrence, ...]:
    events = tuple(
        index
        for index, event in enumerate(case.trace.events)
        if isinstance(event, Op) and not event.is_on_host and _has_doubles(event)
    )
    if not events:
        return ()
    share = _double_share(case)
    times = device_times_ns(case, lambda kernel: kernel.family is not Family.LINALG)
    time_ns = sum(times.get(index, 0.0) for index in events)
    is_slow = time_ns >= _MIN_DOUBLE_TIME_FRACTION * case.prediction.estimate.value_ns
    if share < _MIN_DOUBLE_FRACTION and not is_slow:
        return ()
    origin = line_of_doubles(case)
    location, how = origin or (case.trace.events[events[0]].location, "has the first of them")
    return (
        Occurrence(
            title="the step computes in float64",
            fix="convert data and model to float32: .float() where the data is loaded, "
            "no .double()",
            evidence=f"{len(events)} operators work on float64, {format_percent(share)} of "
            f"the arithmetic of products and convolutions; this line {how}",
            location=location,
            events=events,
            edit=doubles_as_floats(case.trace),
        ),
    )


def _has_doubles(op: Op) -> bool:
    # Scalars in float64 (the scale of a GradScaler, a step counter) cost nothing.
    return any(spec.dtype in _DOUBLES and spec.numel > 1 for spec in (*op.inputs, *op.outputs))


def _double_share(case: Case) -> float:
    """Return the part of the arithmetic in float64: of products, else of all kernels."""
    kernels = [kernel for kernel in case.program.kernels if kernel.family is not Family.LINALG]
    products = [kernel for kernel in kernels if kernel.family in PRODUCTS]
    flop = sum(kernel.flop for kernel in products or kernels)
    in_double = sum(k.flop for k in products or kernels if k.precision is Precision.FP64)
    return in_double / flop if flop > 0 else 0.0

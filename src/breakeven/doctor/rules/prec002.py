"""PREC002: products in full float32 on a GPU with tensor cores.

What it does:
    Reports when matrix products or convolutions in full float32 hold the step back on a GPU that
    has tensor cores: no autocast, and torch's precision for products at "highest", which is
    its default. Convolutions may use TF32 by default. Launches may pace a part of the step:
    products that take a fifth of it count from a gain of a hundredth on, fewer from a
    twentieth.

Why it costs time:
    Tensor cores multiply TF32, float16 and bfloat16 at 4 to 16 times the rate at which the
    other units multiply float32; in full float32 they idle.

Evidence:
    In public reports steps became 1.5 to 3 times faster, one linear layer 10 times.

Fix:
    One line permits TF32 (Ampere and later): inputs of products are rounded to 10 bits, sums
    stay in float32. Autocast goes further and halves what activations move.

    ```python
    loss = criterion(model(x), y)
    ```

    ```python
    torch.set_float32_matmul_precision("high")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
    ```

Known limits:
    The gain shown is that of TF32 where the GPU has it and multiplies faster in it, else that
    of autocast; float16 needs a ``GradScaler`` too, whose cost is not part of it. What
    rounding does to the results is not known.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from breakeven.cost import Kernel
from breakeven.device import Precision
from breakeven.doctor.events import PRODUCTS
from breakeven.doctor.precision_edits import with_autocast
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.step_times import DevicePace, device_times_ns, has_tensor_cores
from breakeven.simulate import Edit
from breakeven.units import format_percent

CAUSE = "NO_TF32_AMP"

# Float32 products that take less cannot bring the gain below, however fast tensor cores are.
_MIN_PRODUCT_FRACTION = 0.1
_MIN_TENSOR_CORE_GAIN = 0.05
# Where they take this part, and launches pace the rest of the step, any gain that a person would
# notice counts: it grows as soon as launches are fixed, or the host is faster than assumed.
_MANY_PRODUCTS_FRACTION = 0.2
_MIN_GAIN_BESIDE_LAUNCHES = 0.01


def detect(case: Case) -> Found:
    settings, device = case.trace.settings, case.device
    if settings.autocast_dtype or not has_tensor_cores(device):
        return
    has_tf32 = device.has_precision(Precision.TF32)
    times = device_times_ns(case, lambda kernel: _is_full_product(kernel, has_tf32=has_tf32))
    if not times:
        return
    pace = DevicePace(case)
    product_fraction = pace.fraction(sum(times.values()))
    if product_fraction < _MIN_PRODUCT_FRACTION:
        return
    has_many = product_fraction >= _MANY_PRODUCTS_FRACTION
    least = _MIN_GAIN_BESIDE_LAUNCHES if has_many else _MIN_TENSOR_CORE_GAIN
    for fix, edit in _tensor_core_edits(case):
        if pace.gain(edit) >= least:
            yield Occurrence(
                title="products run in full float32, tensor cores idle",
                fix=fix,
                evidence=f"{len(times)} operators multiply in float32, "
                f"{format_percent(product_fraction)} of what GPU and launches "
                "take; there is no autocast, and TF32 is not permitted for them",
                events=tuple(times),
                edit=edit,
            )
            return


def _is_full_product(kernel: Kernel, *, has_tf32: bool) -> bool:
    if kernel.family not in PRODUCTS or kernel.variant.startswith(("depthwise", "grouped")):
        return False
    in_full = (Precision.FP32,) if has_tf32 else (Precision.FP32, Precision.TF32)
    return kernel.precision in in_full


def _tensor_core_edits(case: Case) -> Iterator[tuple[str, Edit]]:
    """Yield what to write and the step after it, the smallest change first."""
    autocast = 'torch.autocast("cuda")'
    if case.device.has_precision(Precision.TF32):
        permitted = replace(
            case.trace.settings, allow_tf32_matmul=True, allow_tf32_convolution=True
        )
        tf32 = f'torch.set_float32_matmul_precision("high"), or {autocast}'
        yield tf32, Edit(settings=permitted)
    if case.device.has_precision(Precision.BF16):
        yield f"{autocast} in bfloat16", with_autocast(case.trace, "bfloat16")
    else:
        yield f"{autocast} with a GradScaler", with_autocast(case.trace, "float16")

"""PREC003: autocast makes the step no faster.

What it does:
    Compares the step with the same step in float32, without casts and without the scaling of
    the loss, and reports when autocast brings nothing on this GPU.

Why it costs time:
    Autocast converts weights, activations and gradients in each step, a kernel each. Where
    launching bounds the step these come on top; a GPU without tensor cores multiplies float16
    no faster than float32.

Evidence:
    In public reports autocast made things slower: 15 to 21 minutes, 5.4 to 9.3 s on an A100,
    1 to 4 s on a P40; on an A40 it made no difference.

Fix:
    Switch it off, or give the GPU more work per step: a larger batch.

    ```python
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    ```

    ```python
    loss = criterion(model(x), y)
    loss.backward()
    ```

Known limits:
    Autocast also saves memory; no finding is given where the step would not fit without it.
    At larger batches it may pay.
"""

from __future__ import annotations

import ast

from breakeven.device import Precision
from breakeven.doctor.events import PRODUCTS
from breakeven.doctor.precision_edits import without_autocast
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.source_lines import recorded_calls
from breakeven.doctor.step_times import DevicePace, has_tensor_cores
from breakeven.simulate import Bound
from breakeven.source import is_constant, keyword
from breakeven.trace import Location

CAUSE = "AMP_USELESS"

# From here on autocast costs time rather than making no difference.
_MIN_LOSS = 0.01
# Steps closer than this are the same as far as the cost model goes.
_MAX_HIDDEN_GAIN = 0.05


def detect(case: Case) -> Found:
    dtype = case.trace.settings.autocast_dtype
    # In float32 activations take up to twice the memory.
    fits = 2 * case.prediction.peak_memory_bytes <= case.device.memory_bytes
    if not dtype or not fits or not _computes_in_half(case):
        return
    edit = without_autocast(case.trace)
    pace = DevicePace(case)
    gain = pace.gain_as_it_is(edit)
    reason = _why_useless(case, pace, Precision.BF16 if dtype == "bfloat16" else Precision.FP16)
    # Where loading hides it, autocast is not to blame for what it saves on the device.
    if gain < (0.0 if reason else _MIN_LOSS) or pace.gain(edit) < -_MAX_HIDDEN_GAIN:
        return
    casts = tuple(index for index in edit.replaced if not edit.replaced[index])
    yield Occurrence(
        title=f"autocast in {dtype} makes the step no faster",
        fix="switch autocast off, or raise the batch size",
        evidence=f"{len(casts)} casts and checks of the loss scale in every step, and "
        + (reason or "float32 takes less than they do"),
        location=_line_of_autocast(case),
        events=casts,
        edit=edit,
    )


def _why_useless(case: Case, pace: DevicePace, precision: Precision) -> str:
    """Return what keeps reduced precision from paying on the device; nothing where nothing does."""
    if case.prediction.bound is Bound.LAUNCH or not pace.is_device_bound():
        return "launching bounds the step"
    if not has_tensor_cores(case.device):
        return f"{case.device.name} has no tensor cores"
    if not case.device.has_precision(precision):
        return f"{case.device.name} has no {precision} arithmetic"
    return ""


def _computes_in_half(case: Case) -> bool:
    half = (Precision.FP16, Precision.BF16)
    return any(k.family in PRODUCTS and k.precision in half for k in case.program.kernels)


def _line_of_autocast(case: Case) -> Location | None:
    """Return the line that asks for autocast: the context, or the setting of a trainer."""
    for call in recorded_calls(case, "autocast"):
        source = case.sources.find(call.location)
        if source is None or call.location is None:
            continue
        if "autocast" in "".join(source.lines[call.location.line - 1 : call.location.line]):
            return call.location
    for source, call in case.sources.calls("autocast"):
        if not is_constant(keyword(call, "enabled"), False):
            return source.location(call)
    for source, node in case.sources.nodes(ast.keyword):
        if _asks_for_half(node):
            return Location(file=source.path, line=node.value.lineno)
    return next((call.location for call in recorded_calls(case, "autocast")), None)


def _asks_for_half(node: ast.keyword) -> bool:
    """Return whether a trainer's argument asks for autocast: ``precision="16-mixed"``, ``fp16``."""
    value = node.value
    if node.arg in ("fp16", "bf16"):
        return is_constant(value, True)
    is_precision = node.arg in ("precision", "mixed_precision")
    return is_precision and isinstance(value, ast.Constant) and "16" in str(value.value)

"""Rules about the precision in which a step computes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar, Final, final

import msgspec

from breakeven.cost import Family, Kernel
from breakeven.device import Precision
from breakeven.doctor.alignment_rules import Misaligned
from breakeven.doctor.device_times import (
    DevicePace,
    device_times_ns,
    has_tensor_cores,
)
from breakeven.doctor.double_source import line_of_doubles
from breakeven.doctor.precision_edit import doubles_as_floats, with_autocast, without_autocast
from breakeven.doctor.rule import Case, Occurrence, Rule
from breakeven.doctor.source import is_constant, keyword
from breakeven.doctor.source_lines import calls_in, recorded_calls
from breakeven.simulate import Bound, Edit
from breakeven.trace import Location, Op
from breakeven.units import format_percent

_PRODUCTS: Final = frozenset(
    (Family.GEMM, Family.BATCHED_GEMM, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT)
)
_DOUBLES: Final = frozenset(("float64", "complex128"))
# Below that, float64 is a choice for some numbers (a sum, a small factorization) and no accident.
_MIN_DOUBLE_FRACTION = 0.5
_MIN_DOUBLE_TIME_FRACTION = 0.1
# Float32 products that take less cannot bring the gain below, however fast tensor cores are.
_MIN_PRODUCT_FRACTION = 0.1
_MIN_TENSOR_CORE_GAIN = 0.05
# Where they take this part, and launches pace the rest of the step, any gain that a person would
# notice counts: it grows as soon as launches are mended, or the host is faster than assumed.
_MANY_PRODUCTS_FRACTION = 0.2
_MIN_GAIN_BESIDE_LAUNCHES = 0.01
# From here on autocast costs time rather than making no difference.
_MIN_LOSS = 0.01
# Steps closer than this are the same as far as the cost model can tell.
_MAX_HIDDEN_GAIN = 0.05


@final
class DoublePrecision:
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

    code: ClassVar[str] = "PREC001"
    cause: ClassVar[str] = "FP64"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence when most of the step is in float64."""
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
    products = [kernel for kernel in kernels if kernel.family in _PRODUCTS]
    flop = sum(kernel.flop for kernel in products or kernels)
    in_double = sum(k.flop for k in products or kernels if k.precision is Precision.FP64)
    return in_double / flop if flop > 0 else 0.0


@final
class NoTensorCores:
    """PREC002: products in full float32 on a GPU with tensor cores.

    What it does:
        Tells when matrix products or convolutions in full float32 hold the step back on a GPU that
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

    code: ClassVar[str] = "PREC002"
    cause: ClassVar[str] = "NO_TF32_AMP"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence, without a line, when tensor cores would shorten the step."""
        settings, device = case.trace.settings, case.device
        if settings.autocast_dtype or not has_tensor_cores(device):
            return ()
        has_tf32 = device.has_precision(Precision.TF32)
        times = device_times_ns(case, lambda kernel: _is_full_product(kernel, has_tf32=has_tf32))
        if not times:
            return ()
        pace = DevicePace(case)
        product_fraction = pace.fraction(sum(times.values()))
        if product_fraction < _MIN_PRODUCT_FRACTION:
            return ()
        has_many = product_fraction >= _MANY_PRODUCTS_FRACTION
        least = _MIN_GAIN_BESIDE_LAUNCHES if has_many else _MIN_TENSOR_CORE_GAIN
        for fix, edit in _tensor_core_edits(case):
            if pace.gain(edit) >= least:
                return (
                    Occurrence(
                        title="products run in full float32, tensor cores idle",
                        fix=fix,
                        evidence=f"{len(times)} operators multiply in float32, "
                        f"{format_percent(product_fraction)} of what GPU and launches "
                        "take; there is no autocast, and TF32 is not permitted for them",
                        events=tuple(times),
                        edit=edit,
                    ),
                )
        return ()


def _is_full_product(kernel: Kernel, *, has_tf32: bool) -> bool:
    if kernel.family not in _PRODUCTS or kernel.variant.startswith(("depthwise", "grouped")):
        return False
    in_full = (Precision.FP32,) if has_tf32 else (Precision.FP32, Precision.TF32)
    return kernel.precision in in_full


def _tensor_core_edits(case: Case) -> Iterator[tuple[str, Edit]]:
    """Yield what to write and the step after it, the smallest change first."""
    autocast = 'torch.autocast("cuda")'
    if case.device.has_precision(Precision.TF32):
        permitted = msgspec.structs.replace(
            case.trace.settings, allow_tf32_matmul=True, allow_tf32_convolution=True
        )
        tf32 = f'torch.set_float32_matmul_precision("high"), or {autocast}'
        yield tf32, Edit(settings=permitted)
    if case.device.has_precision(Precision.BF16):
        yield f"{autocast} in bfloat16", with_autocast(case.trace, "bfloat16")
    else:
        yield f"{autocast} with a GradScaler", with_autocast(case.trace, "float16")


@final
class AutocastUseless:
    """PREC003: autocast makes the step no faster.

    What it does:
        Compares the step with the same step in float32, without casts and without the scaling of
        the loss, and tells when autocast brings nothing on this GPU.

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

    code: ClassVar[str] = "PREC003"
    cause: ClassVar[str] = "AMP_USELESS"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence when the step in float32 is as fast."""
        dtype = case.trace.settings.autocast_dtype
        # In float32 activations take up to twice the memory.
        fits = 2 * case.prediction.peak_memory_bytes <= case.device.memory_bytes
        if not dtype or not fits or not _computes_in_half(case):
            return ()
        edit = without_autocast(case.trace)
        pace = DevicePace(case)
        gain = pace.gain_as_it_is(edit)
        reason = _why_useless(case, pace, Precision.BF16 if dtype == "bfloat16" else Precision.FP16)
        # Where loading hides it, autocast is not to blame for what it saves on the device.
        if gain < (0.0 if reason else _MIN_LOSS) or pace.gain(edit) < -_MAX_HIDDEN_GAIN:
            return ()
        casts = tuple(index for index in edit.replaced if not edit.replaced[index])
        return (
            Occurrence(
                title=f"autocast in {dtype} makes the step no faster",
                fix="switch autocast off, or raise the batch size",
                evidence=f"{len(casts)} casts and checks of the loss scale in every step, and "
                + (reason or "float32 takes less than they do"),
                location=_line_of_autocast(case),
                events=casts,
                edit=edit,
            ),
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
    return any(k.family in _PRODUCTS and k.precision in half for k in case.program.kernels)


def _line_of_autocast(case: Case) -> Location | None:
    """Return the line that asks for autocast: the context, or the setting of a trainer."""
    for call in recorded_calls(case, "autocast"):
        source = case.sources.find(call.location)
        if source is None or call.location is None:
            continue
        if "autocast" in "".join(source.lines[call.location.line - 1 : call.location.line]):
            return call.location
    for source, call in calls_in(case.sources, "autocast"):
        if not is_constant(keyword(call, "enabled"), False):
            return source.location(call)
    for source in case.sources:
        for node in source.nodes(ast.keyword):
            assert isinstance(node, ast.keyword)
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


PRECISION_RULES: tuple[Rule, ...] = (
    DoublePrecision(),
    NoTensorCores(),
    AutocastUseless(),
    Misaligned(),
)

"""PREC: the precision of the step's arithmetic."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from breakeven.advise.events import bare_name, line_of, op_at, with_tensors
from breakeven.advise.rule import KnownGain, Match, Matches, RuleInput, rule
from breakeven.advise.source_lines import line_of_layer, recorded_calls
from breakeven.advise.step_times import DevicePace, device_times_ns
from breakeven.cost import MATRIX_FAMILIES, Family, has_matrix_units
from breakeven.device import Precision
from breakeven.simulate import Bound, Edit
from breakeven.source import nodes_in
from breakeven.trace import Copy, Event, Location, Op, Phase, StepTrace, TensorSpec
from breakeven.units import format_percent

_DOUBLES: Final = {"float64": "float32", "complex128": "complex64"}
# Below this share, float64 is deliberate for some numbers (a sum, a small factorization).
_MIN_DOUBLE_FRACTION = 0.5
_MIN_DOUBLE_TIME_FRACTION = 0.1

_DOUBLE_NAMES: Final = frozenset(
    ("float64", "double", "DoubleTensor", "Float64", "complex128", "cdouble")
)
_DEFAULTS: Final = ("set_default_dtype", "set_default_tensor_type")
# Tensors made from arrays take the array's dtype, float64 by default.
_NARROW_NAMES: Final = frozenset(
    ("float32", "float16", "bfloat16", "float", "half", "int64", "int32", "long", "int", "uint8",
     "bool", "FloatTensor", "LongTensor", "single")
)  # fmt: skip


@rule("PREC001", "FP64")
def float64(case: RuleInput) -> Matches:
    # Scalars in float64 (the scale of a GradScaler, a step counter) cost nothing.
    events = tuple(
        index
        for index, op in case.each_on_device()
        if any(spec.dtype in _DOUBLES and spec.numel > 1 for spec in (*op.inputs, *op.outputs))
    )
    if not events:
        return
    # The float64 share of the arithmetic: of products if any, else of all kernels.
    kernels = [kernel for kernel in case.program.kernels if kernel.family is not Family.LINALG]
    kernels = [kernel for kernel in kernels if kernel.family in MATRIX_FAMILIES] or kernels
    in_double = sum(kernel.flop for kernel in kernels if kernel.precision is Precision.FP64)
    share = in_double / max(1.0, sum(kernel.flop for kernel in kernels))
    times = device_times_ns(case, lambda kernel: kernel.family is not Family.LINALG)
    time_ns = sum(times.get(index, 0.0) for index in events)
    is_slow = time_ns >= _MIN_DOUBLE_TIME_FRACTION * case.step_ns
    if share < _MIN_DOUBLE_FRACTION and not is_slow:
        return
    first = (case.trace.events[events[0]].location, "has the first of them")
    location, how = next(_origins(case), first)
    yield Match(
        title="the step computes in float64",
        fix="convert data and model to float32: .float() after loading the data, no .double()",
        evidence=f"{len(events)} operators work on float64, {format_percent(share)} of "
        f"the arithmetic of products and convolutions; this line {how}",
        location=location,
        events=events,
        edit=doubles_as_floats(case.trace),
    )


def _origins(case: RuleInput) -> Iterator[tuple[Location, str]]:
    """Yield the lines that may introduce float64, and how, most certain first.

    The order is: the default dtype, the conversion of a model, a tensor made from an array.
    """
    for call in recorded_calls(case, *_DEFAULTS):
        if call.location is not None and any(name in call.argument for name in _DOUBLE_NAMES):
            yield call.location, "makes float64 the default dtype"
    for call in recorded_calls(case, "Module.double"):
        if call.location is not None:
            yield call.location, "converts to float64"
    for source, call in case.sources.calls("from_numpy", "torch.as_tensor"):
        statement = next(node for node in source.parents(call) if isinstance(node, ast.stmt))
        # Another dtype is named in the statement: `torch.from_numpy(x).float()`.
        if all(part.attr not in _NARROW_NAMES for part in nodes_in(statement, ast.Attribute)):
            yield source.location(call), "takes the dtype of an array, float64 by default"


# A smaller share of float32 products cannot reach the gain below, even on fast tensor cores.
_MIN_PRODUCT_FRACTION = 0.1
_MIN_TENSOR_CORE_GAIN = 0.05
# From this share on, if launches pace the rest of the step, any noticeable gain counts: it grows
# once launches are fixed, or if the host is faster than assumed.
_MANY_PRODUCTS_FRACTION = 0.2
_MIN_GAIN_BESIDE_LAUNCHES = 0.01


@rule("PREC002", "NO_TF32_AMP")
def unused_tensor_cores(case: RuleInput) -> Matches:
    settings, device = case.trace.settings, case.device
    if settings.autocast_dtype or not has_matrix_units(device):
        return
    has_tf32 = device.has_precision(Precision.TF32)
    in_full = (Precision.FP32,) if has_tf32 else (Precision.FP32, Precision.TF32)
    times = device_times_ns(
        case,
        lambda kernel: (
            kernel.family in MATRIX_FAMILIES
            and not kernel.variant.startswith(("depthwise", "grouped"))
            and kernel.precision in in_full
        ),
    )
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
            yield Match(
                title="products run in full float32, tensor cores idle",
                fix=fix,
                evidence=f"{len(times)} operators multiply in float32, "
                f"{format_percent(product_fraction)} of the time of kernels and "
                "launches; there is no autocast, and TF32 is off for them",
                events=tuple(times),
                edit=edit,
            )
            return


def _tensor_core_edits(case: RuleInput) -> Iterator[tuple[str, Edit]]:
    """Yield fixes and the steps after them, the smallest change first."""
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


_MULTIPLE: Final = 8
_HALF: Final = frozenset(("float16", "bfloat16"))
_GEMMS: Final = (Family.GEMM, Family.BATCHED_GEMM)
_MIN_FRACTION = 0.02
# Time of a misaligned product size relative to the next aligned size: 3.5 times on Hopper for 588
# against 592 (m87-labs/kestrel, PR 143), no difference on a Titan V (allenai/allennlp, PR 4929).
# Use the middle, with both as the ends of the interval.
_WORST_RATIO = 3.5
_WORST_LOSS = 1.0 - 1.0 / _WORST_RATIO


@rule("PREC004", "MISALIGNED")
def misaligned_sizes(case: RuleInput) -> Matches:
    if not has_matrix_units(case.device):
        return
    times = device_times_ns(
        case,
        lambda kernel: (
            kernel.family in _GEMMS
            and kernel.precision in (Precision.FP16, Precision.BF16)
            and case.device.has_precision(kernel.precision)
        ),
    )
    sizes = {index: _misaligned_rows(op_at(case.trace, index)) for index in times}
    layers: dict[object, list[int]] = {}
    for index in (index for index in times if sizes[index]):
        op = op_at(case.trace, index)
        layers.setdefault(op.module or line_of(op), []).append(index)
    if not layers:
        return
    pace = DevicePace(case)
    # Kernels shorter than their launches cost nothing extra. The model costs these as aligned, so
    # they may take longer.
    modelled_ns = sum(times[index] for events in layers.values() for index in events)
    if not pace.is_device_bound(more_ns=(_WORST_RATIO - 1.0) * modelled_ns):
        return
    # If loading or the script take longer than the device, almost nothing is saved.
    paced_by_device = (Bound.COMPUTE, Bound.MEMORY, Bound.LATENCY, Bound.SYNC)
    typical_loss = _WORST_LOSS / 2 if case.prediction.bound in paced_by_device else 0.0
    for events in layers.values():
        time_ns = sum(times[index] for index in events)
        if pace.fraction(time_ns) < _MIN_FRACTION:
            continue
        own = sorted({size for index in events for size in sizes[index]})
        listed = f"size{'s' * (len(own) > 1)} {', '.join(map(str, own))}"
        rounded = ", ".join(f"{size} to {-(-size // _MULTIPLE) * _MULTIPLE}" for size in own)
        fraction = time_ns / case.step_ns if case.step_ns > 0 else 0.0
        # The line that makes the layer, matched by input and output sizes in its arguments.
        first = op_at(case.trace, events[0])
        is_forward = bare_name(first) in ("addmm", "mm") and first.phase is Phase.FORWARD
        shape = first.inputs[-1].shape if is_forward else ()
        yield Match(
            title=f"half-precision products with {listed}",
            fix=f"round up to multiples of {_MULTIPLE}: {rounded}",
            evidence=f"{len(events)} products in half precision with rows that are no multiple of "
            "16 bytes",
            location=line_of_layer(case.sources, first, ("Linear", "Conv1D"), shape),
            events=tuple(events),
            gain=KnownGain(
                fraction=fraction * typical_loss,
                low_fraction=0.0,
                high_fraction=fraction * _WORST_LOSS,
            ),
        )


def _misaligned_rows(op: Op) -> list[int]:
    """Return the row lengths in memory that are not multiples of 8."""
    beside = {"contiguous": -1, "transposed": -2}
    lengths = (
        spec.shape[beside[spec.layout]]
        for spec in (*op.inputs, *op.outputs)
        if spec.dtype in _HALF and len(spec.shape) > 1 and spec.layout in beside
    )
    return [length for length in lengths if length > 1 and length % _MULTIPLE]


_FLOATS: Final = ("float32", "float16", "bfloat16")

# Operators that autocast runs in half precision on CUDA.
# Source: aten/src/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP.
_PRODUCTS = frozenset(
    ("_convolution", "_cudnn_rnn", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "addbmm",
     "addmm", "addmv", "baddbmm", "bmm", "convolution", "convolution_backward",
     "cudnn_convolution", "cudnn_convolution_transpose", "linear", "matmul", "mm", "mv", "prelu")
)  # fmt: skip
_ATTENTION = ("_scaled_dot_product_", "scaled_dot_product_")
# Operators that autocast runs in float32, each with its gradient, by the names below autograd.
# Source: as above, AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE.
_FULL = (
    "_log_softmax", "_softmax", "native_layer_norm", "native_group_norm", "nll_loss", "mse_loss",
    "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "l1_loss", "kl_div", "exp", "expm1",
    "log", "pow", "rsqrt", "reciprocal", "softplus", "cumsum", "cumprod", "prod", "sum",
    "linalg_vector_norm", "logsumexp", "acos", "asin", "sinh", "cosh", "tan",
)  # fmt: skip
# One-dimensional results of a batch norm are statistics, which always stay in float32.
_BATCH_NORM = "batch_norm"


def doubles_as_floats(trace: StepTrace) -> Edit:
    """Return the step with float64 replaced by float32."""
    return recast(trace, _DOUBLES)


def recast(trace: StepTrace, dtypes: Mapping[str, str]) -> Edit:
    """Return the step with dtypes replaced.

    Args:
        trace: The step.
        dtypes: New dtypes by the replaced ones.
    """

    def cast(spec: TensorSpec) -> TensorSpec:
        return replace(spec, dtype=dtypes.get(spec.dtype, spec.dtype))

    replaced: dict[int, tuple[Event, ...]] = {}
    for index, event in enumerate(trace.events):
        if isinstance(event, Copy) and event.dtype in dtypes:
            before = TensorSpec(shape=(), dtype=event.dtype, device="cpu")
            num_bytes = event.num_bytes // before.element_bytes * cast(before).element_bytes
            replaced[index] = (replace(event, dtype=dtypes[event.dtype], num_bytes=num_bytes),)
        elif isinstance(event, Op) and (changed := with_tensors(event, cast)) != event:
            # Drop a cast that no longer changes anything.
            before, after = (
                [(spec.dtype, spec.device, spec.layout) for spec in specs]
                for specs in (changed.inputs, changed.outputs)
            )
            is_useless = bare_name(event) == "_to_copy" and before == after
            replaced[index] = () if is_useless else (changed,)
    return Edit(replaced=replaced)


def with_autocast(trace: StepTrace, dtype: str) -> Edit:
    """Return the step under autocast.

    Args:
        trace: A step in float32.
        dtype: ``float16`` or ``bfloat16``.
    """
    replaced: dict[int, tuple[Event, ...]] = {}
    # Memory in half precision; memory that the step computes (not parameters or batches); and
    # parameters whose casts autocast caches.
    halves, computed, kept = set[int](), set[int](), set[int]()

    def current(spec: TensorSpec) -> TensorSpec:
        is_half = spec.dtype == "float32" and spec.storage in halves
        return replace(spec, dtype=dtype) if is_half else spec

    def is_float(spec: TensorSpec) -> bool:
        return bool(spec.shape) and spec.dtype in _FLOATS  # leave scalars alone

    for index, op in enumerate(trace.events):
        if not isinstance(op, Op) or op.is_on_host:
            continue
        name, inputs, casts = bare_name(op), list(map(current, op.inputs)), list[Event]()
        is_product = name in _PRODUCTS or name.startswith(_ATTENTION)
        if is_product or op.phase is Phase.OPTIMIZER or name.startswith(_FULL):
            wanted = dtype if is_product else "float32"
            for position, spec in enumerate(inputs):
                if not is_float(spec) or spec.dtype == wanted:
                    continue
                inputs[position] = result = replace(spec, dtype=wanted)
                if spec.storage not in kept:
                    casts.append(
                        replace(
                            op,
                            name="aten._to_copy.default",
                            inputs=(spec,),
                            outputs=(result,),
                            attributes={},
                        )
                    )
                if spec.storage >= 0 and spec.storage not in computed:
                    kept.add(spec.storage)
            is_half = is_product and any(spec.dtype == dtype for spec in inputs)
        else:
            followed = inputs[:1] if _BATCH_NORM in name else inputs
            floats = [spec.dtype for spec in followed if is_float(spec)]
            is_half = bool(floats) and all(one == dtype for one in floats)
        outputs: list[TensorSpec] = []
        for spec in op.outputs:
            is_known = spec.storage >= 0
            if is_known and any(spec.storage == given.storage for given in op.inputs):
                outputs.append(current(spec))  # written in place
                continue
            if is_known:
                computed.add(spec.storage)
            is_statistic = _BATCH_NORM in op.name and len(spec.shape) == 1
            if is_half and not is_statistic and spec.dtype == "float32":
                halves.update({spec.storage} if is_known else ())
                spec = replace(spec, dtype=dtype)
            outputs.append(spec)
        changed = (*casts, replace(op, inputs=tuple(inputs), outputs=tuple(outputs)))
        if changed != (op,):
            replaced[index] = changed
    return Edit(replaced=replaced)

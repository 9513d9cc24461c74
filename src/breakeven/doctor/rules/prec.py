"""PREC: the precision that the step computes in."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from breakeven.cost import Family, Kernel
from breakeven.device import Precision
from breakeven.doctor.events import (
    PRODUCTS,
    bare_name,
    is_convolution,
    line_of,
    op_at,
    with_tensors,
)
from breakeven.doctor.precision_edits import doubles_as_floats, with_autocast
from breakeven.doctor.rule import KnownGain, Match, Matches, RuleInput, changed, rule
from breakeven.doctor.source_lines import line_of_layer, recorded_calls
from breakeven.doctor.step_times import DevicePace, device_times_ns, has_tensor_cores
from breakeven.simulate import Bound, Edit
from breakeven.source import SourceFile, arguments_of, dotted_name, last_name, nodes_in, text_of
from breakeven.trace import Location, Op, Phase, TensorSpec
from breakeven.units import format_percent

_DOUBLES: Final = frozenset(("float64", "complex128"))
# Below that, float64 is a choice for some numbers (a sum, a small factorization) and no accident.
_MIN_DOUBLE_FRACTION = 0.5
_MIN_DOUBLE_TIME_FRACTION = 0.1

_DOUBLE_NAMES: Final = frozenset(
    ("float64", "double", "DoubleTensor", "Float64", "complex128", "cdouble")
)
_DEFAULTS: Final = ("set_default_dtype", "set_default_tensor_type")
# Tensors made from arrays take their dtype, which is float64 unless someone chose another.
_NARROW_NAMES: Final = frozenset(
    ("float32", "float16", "bfloat16", "float", "half", "int64", "int32", "long", "int", "uint8",
     "bool", "FloatTensor", "LongTensor", "single")
)  # fmt: skip


@rule("PREC001", "FP64")
def float64(case: RuleInput) -> Matches:
    events = tuple(index for index, op in case.each_on_device() if _has_doubles(op))
    if not events:
        return
    share = _double_share(case)
    times = device_times_ns(case, lambda kernel: kernel.family is not Family.LINALG)
    time_ns = sum(times.get(index, 0.0) for index in events)
    is_slow = time_ns >= _MIN_DOUBLE_TIME_FRACTION * case.step_ns
    if share < _MIN_DOUBLE_FRACTION and not is_slow:
        return
    first = (case.trace.events[events[0]].location, "has the first of them")
    location, how = next(_origins(case), first)
    yield Match(
        title="the step computes in float64",
        fix="convert data and model to float32: .float() where the data is loaded, no .double()",
        evidence=f"{len(events)} operators work on float64, {format_percent(share)} of "
        f"the arithmetic of products and convolutions; this line {how}",
        location=location,
        events=events,
        edit=doubles_as_floats(case.trace),
    )


def _has_doubles(op: Op) -> bool:
    # Scalars in float64 (the scale of a GradScaler, a step counter) cost nothing.
    return any(spec.dtype in _DOUBLES and spec.numel > 1 for spec in (*op.inputs, *op.outputs))


def _double_share(case: RuleInput) -> float:
    """Return the part of the arithmetic in float64: of products, else of all kernels."""
    kernels = [kernel for kernel in case.program.kernels if kernel.family is not Family.LINALG]
    products = [kernel for kernel in kernels if kernel.family in PRODUCTS]
    flop = sum(kernel.flop for kernel in products or kernels)
    in_double = sum(k.flop for k in products or kernels if k.precision is Precision.FP64)
    return in_double / flop if flop > 0 else 0.0


def _origins(case: RuleInput) -> Iterator[tuple[Location, str]]:
    """Yield the lines where float64 may begin, and what they do, the surest first.

    The default dtype comes first, then the conversion of a model, then a tensor asked for in
    float64, then one that is made from an array of doubles.
    """
    for call in recorded_calls(case, *_DEFAULTS):
        if call.location is not None and any(name in call.argument for name in _DOUBLE_NAMES):
            yield call.location, "makes float64 the default dtype"
    for source, call in case.sources.calls(*_DEFAULTS):
        if _names_double(call):
            yield source.location(call), "makes float64 the default dtype"
    for location in _conversions(case):
        yield location, "converts to float64"
    for source, node in case.sources.nodes(ast.keyword):
        called = source.parent(node)
        of_numpy = called is not None and dotted_name(called).startswith(("np.", "numpy."))
        if node.arg == "dtype" and not of_numpy and _is_double(node.value):
            yield source.location(node.value), "asks for float64"
    for source, call in case.sources.calls("from_numpy", "torch.as_tensor"):
        called = dotted_name(call.func)
        is_of_torch = called.startswith("torch.") or called == "from_numpy"
        if is_of_torch and not _is_narrowed(source, call):
            yield source.location(call), "takes the dtype of an array, float64 by default"


def _conversions(case: RuleInput) -> Iterator[Location]:
    for call in recorded_calls(case, "Module.double"):
        if call.location is not None:
            yield call.location
    found = [
        (source, call)
        for source, call in case.sources.calls("double", "to", "type")
        if isinstance(call.func, ast.Attribute)
        and (call.func.attr == "double" or _names_double(call))
    ]
    # A value converted within a loop may be a statistic; a model is converted before.
    found.sort(key=lambda one: len(one[0].loops_around(one[1].lineno)) > 0)
    for source, call in found:
        # The line of the name: a model may be written over many lines before it is converted.
        yield Location(file=source.path, line=call.func.end_lineno or call.lineno)


def _is_narrowed(source: SourceFile, call: ast.Call) -> bool:
    """Return whether the statement names another dtype: ``torch.from_numpy(x).float()``."""
    statement = next(node for node in source.parents(call) if isinstance(node, ast.stmt))
    return any(part.attr in _NARROW_NAMES for part in nodes_in(statement, ast.Attribute))


def _names_double(call: ast.Call) -> bool:
    return any(map(_is_double, arguments_of(call)))


def _is_double(node: ast.expr) -> bool:
    text = text_of(node)
    name = last_name(node) if text is None else text.rpartition(".")[2]
    return name in _DOUBLE_NAMES


# Float32 products that take less cannot bring the gain below, however fast tensor cores are.
_MIN_PRODUCT_FRACTION = 0.1
_MIN_TENSOR_CORE_GAIN = 0.05
# Where they take this part, and launches pace the rest of the step, any gain that a person would
# notice counts: it grows as soon as launches are fixed, or the host is faster than assumed.
_MANY_PRODUCTS_FRACTION = 0.2
_MIN_GAIN_BESIDE_LAUNCHES = 0.01


@rule("PREC002", "NO_TF32_AMP")
def unused_tensor_cores(case: RuleInput) -> Matches:
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
            yield Match(
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


def _tensor_core_edits(case: RuleInput) -> Iterator[tuple[str, Edit]]:
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


_MULTIPLE: Final = 8
_HALF: Final = frozenset(("float16", "bfloat16"))
_GEMMS: Final = (Family.GEMM, Family.BATCHED_GEMM)
# Images have 1, 3 or 4 channels, which nobody can change.
_MAX_IMAGE_CHANNELS = 4
_MIN_FRACTION = 0.02
# A product at a size that misses the alignment, against the next size that does not: 3.5 times the
# time on Hopper for 588 against 592 (m87-labs/kestrel, PR 143), no difference on a Titan V
# (allenai/allennlp, PR 4929). The middle is taken, and both are the ends of the interval.
_WORST_RATIO = 3.5
_WORST_LOSS = 1.0 - 1.0 / _WORST_RATIO
_TYPICAL_LOSS = _WORST_LOSS / 2


@rule("PREC004", "MISALIGNED")
def misaligned_sizes(case: RuleInput) -> Matches:
    if has_tensor_cores(case.device):
        yield from _products(case)
        yield from _convolutions(case)


def _products(case: RuleInput) -> Matches:
    times = device_times_ns(
        case,
        lambda kernel: (
            kernel.family in _GEMMS
            and kernel.precision in (Precision.FP16, Precision.BF16)
            and case.device.has_precision(kernel.precision)
        ),
    )
    rows = {index: _misaligned_rows(op_at(case.trace, index)) for index in times}
    misaligned = [index for index, found in rows.items() if found]
    if not misaligned:
        return
    pace = DevicePace(case)
    # Kernels that the host takes longer to launch may be as slow as they like. These are costed
    # as aligned ones, and may take longer.
    modelled_ns = sum(times[index] for index in misaligned)
    if not pace.is_device_bound(more_ns=(_WORST_RATIO - 1.0) * modelled_ns):
        return
    for events in _by_layer(case, misaligned):
        time_ns = sum(times[index] for index in events)
        if pace.fraction(time_ns) < _MIN_FRACTION:
            continue
        sizes = sorted({size for index in events for size in rows[index]})
        yield Match(
            title=f"half-precision products with {_as_text(sizes)}",
            fix=f"round up to multiples of {_MULTIPLE}: {_rounded(sizes)}",
            evidence=f"{len(events)} products in half precision with rows that are no multiple of "
            "16 bytes",
            location=_line(case, events[0], ("Linear", "Conv1D")),
            events=events,
            gain=_known_gain(case, time_ns),
        )


def _convolutions(case: RuleInput) -> Matches:
    channels = {index: found for index, op in case.each_on_device() if (found := _channels(op))}
    if not channels:
        return
    pace = DevicePace(case)
    for events in _by_layer(case, channels):
        edit = changed({index: _padded(op_at(case.trace, index)) for index in events})
        if pace.gain(edit) < _MIN_FRACTION:
            continue
        sizes = sorted({size for index in events for size in channels[index]})
        yield Match(
            title=f"half-precision convolution with {_as_text(sizes)}",
            fix=f"round channels up to multiples of {_MULTIPLE}: {_rounded(sizes)}",
            evidence=f"{len(events)} convolutions in half precision whose channels are no multiple "
            f"of {_MULTIPLE}",
            location=_line(case, events[0], ("Conv1d", "Conv2d", "Conv3d")),
            events=events,
            edit=edit,
        )


def _known_gain(case: RuleInput, time_ns: float) -> KnownGain:
    """Return what aligned products save of the step, by the public reports above."""
    fraction = time_ns / case.step_ns if case.step_ns > 0 else 0.0
    # Next to nothing is saved where loading or the script outlast the device.
    paced_by_device = (Bound.COMPUTE, Bound.MEMORY, Bound.LATENCY, Bound.SYNC)
    is_paced_by_device = case.prediction.bound in paced_by_device
    return KnownGain(
        fraction=fraction * _TYPICAL_LOSS if is_paced_by_device else 0.0,
        low_fraction=0.0,
        high_fraction=fraction * _WORST_LOSS,
    )


def _misaligned_rows(op: Op) -> tuple[int, ...]:
    """Return the lengths of rows in memory that are no multiples of 8."""
    lengths = (
        _row_length(spec)
        for spec in (*op.inputs, *op.outputs)
        if spec.dtype in _HALF and len(spec.shape) > 1
    )
    return tuple(length for length in lengths if length > 1 and length % _MULTIPLE)


def _row_length(spec: TensorSpec) -> int:
    """Return how many elements lie beside each other; 0 where that is not recorded."""
    position = {"contiguous": -1, "transposed": -2}.get(spec.layout)
    return spec.shape[position] if position else 0


def _channels(op: Op) -> tuple[int, ...]:
    """Return the numbers of channels of an ungrouped convolution that are no multiples of 8."""
    if not is_convolution(op) or int(op.attributes.get("groups", 1) or 1) > 1:
        return ()
    weight = _weight(op)
    if weight is None or weight.dtype not in _HALF:
        return ()
    channels = [size for size in weight.shape[:2] if size > _MAX_IMAGE_CHANNELS]
    return tuple(size for size in channels if size % _MULTIPLE)


def _weight(op: Op) -> TensorSpec | None:
    position = 2 if bare_name(op) == "convolution_backward" else 1
    return op.inputs[position] if len(op.inputs) > position else None


def _padded(op: Op) -> Op:
    """Return the convolution with its channels rounded up, those of images excepted."""
    weight = _weight(op)
    assert weight is not None
    wanted = {size: _round_up(size) for size in weight.shape[:2] if size > _MAX_IMAGE_CHANNELS}

    def pad(spec: TensorSpec) -> TensorSpec:
        if len(spec.shape) != len(weight.shape):
            return spec
        is_weight = spec.shape == weight.shape
        shape = tuple(
            wanted.get(size, size) if position == 1 or (position == 0 and is_weight) else size
            for position, size in enumerate(spec.shape)
        )
        return replace(spec, shape=shape)

    return with_tensors(op, pad)


def _by_layer(case: RuleInput, events: Iterable[int]) -> list[tuple[int, ...]]:
    """Return positions of events by module, outside of modules by line."""
    groups: dict[object, list[int]] = {}
    for index in events:
        op = op_at(case.trace, index)
        groups.setdefault(op.module or line_of(op), []).append(index)
    return [tuple(group) for group in groups.values()]


def _line(case: RuleInput, index: int, kinds: tuple[str, ...]) -> Location | None:
    """Return the line that makes a layer, by its inputs and outputs as its arguments say them."""
    op = op_at(case.trace, index)
    sizes: tuple[int, ...] = ()
    if is_convolution(op):
        weight = _weight(op)
        sizes = () if weight is None else (weight.shape[1], weight.shape[0])
    elif bare_name(op) in ("addmm", "mm") and op.phase is Phase.FORWARD:
        sizes = op.inputs[-1].shape
    return line_of_layer(case.sources, op, kinds, sizes)


def _round_up(size: int) -> int:
    return -(-size // _MULTIPLE) * _MULTIPLE


def _as_text(sizes: list[int]) -> str:
    return f"{'sizes' if len(sizes) > 1 else 'size'} {', '.join(map(str, sizes))}"


def _rounded(sizes: list[int]) -> str:
    return ", ".join(f"{size} to {_round_up(size)}" for size in sizes)

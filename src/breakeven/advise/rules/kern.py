"""KERN: kernels that are slower than necessary."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from breakeven.advise.events import (
    BATCH_NORMS,
    CONVOLUTION_BACKWARD,
    CONVOLUTIONS,
    bare_name,
    op_at,
    with_tensors,
)
from breakeven.advise.rule import Match, Matches, RuleInput, by_line, changed, rule, times_per_step
from breakeven.advise.source_lines import line_of_layer
from breakeven.advise.step_times import DevicePace, device_times_ns
from breakeven.cost import Family, Kernel, has_matrix_units
from breakeven.device import Precision
from breakeven.simulate import Edit
from breakeven.source import is_constant, is_named
from breakeven.trace import Event, Location, Op, Phase, TensorSpec
from breakeven.units import format_percent

_HALF: Final = (Precision.FP16, Precision.BF16)
_MIN_LAYOUT_GAIN = 0.02
# With a larger share of grouped convolutions, a layout change may cost more than it saves.
_MAX_GROUPED_FRACTION = 0.2
_IMAGE_DIMENSIONS = 4


@rule("KERN001", "CHANNELS_LAST")
def channels_first(case: RuleInput) -> Matches:
    if not has_matrix_units(case.device):
        return
    times = device_times_ns(case, lambda kernel: kernel.family is Family.CONVOLUTION)
    grouped = device_times_ns(case, _is_grouped)
    converted = device_times_ns(
        case,
        lambda kernel: (
            kernel.family is Family.CONVOLUTION
            and kernel.precision in _HALF
            and kernel.conversion_bytes > 0
            and not _is_grouped(kernel)
        ),
    )
    if not converted or sum(grouped.values()) > _MAX_GROUPED_FRACTION * sum(times.values()):
        return
    # The step with all images in channels-last layout, converted once at the start.
    replaced: dict[int, tuple[Event, ...]] = {}
    is_converted = False
    for index, op in case.each_on_device():
        new = with_tensors(op, _as_channels_last)
        if new != op:
            replaced[index] = (new,)
            if not is_converted and bare_name(op) in CONVOLUTIONS:
                # Convert the batch itself: it arrives in the layout of the data set.
                batch = replace(new, name="aten.clone.default", inputs=op.inputs[:1], attributes={})
                replaced[index] = (replace(batch, outputs=new.inputs[:1]), new)
                is_converted = True
    edit, pace = Edit(replaced=replaced), DevicePace(case)
    if pace.gain(edit) < _MIN_LAYOUT_GAIN:
        return
    fraction = pace.fraction(sum(converted.values()))
    yield Match(
        title="half-precision convolutions have their channels first in memory",
        fix="model.to(memory_format=torch.channels_last), and the same for each batch",
        evidence=f"{len(converted)} half-precision convolutions of contiguous tensors, "
        f"{format_percent(fraction)} of the time of kernels and launches",
        events=tuple(converted),
        edit=edit,
    )


def _is_grouped(kernel: Kernel) -> bool:
    is_convolution = kernel.family is Family.CONVOLUTION
    return is_convolution and kernel.variant.startswith(("grouped", "depthwise"))


def _as_channels_last(spec: TensorSpec) -> TensorSpec:
    is_image = len(spec.shape) == _IMAGE_DIMENSIONS and spec.layout == "contiguous"
    return replace(spec, layout="channels_last") if is_image else spec


# If convolutions take a smaller share, faster ones make no visible difference.
_MIN_CONVOLUTION_FRACTION = 0.3
# Fixed shapes need at least two steps with equal shapes.
_MIN_STEPS = 2


@rule("KERN002", "CUDNN_BENCH_OFF")
def unsearched_convolutions(case: RuleInput) -> Matches:
    facts = case.facts
    are_fixed = facts.num_convolution_shapes == 1 and facts.num_steps >= _MIN_STEPS
    is_of_cudnn = case.device.vendor == "nvidia"
    if case.trace.settings.cudnn_benchmark or not are_fixed or not is_of_cudnn:
        return
    times = device_times_ns(case, lambda kernel: kernel.family is Family.CONVOLUTION)
    if not times:
        return
    pace = DevicePace(case)
    fraction = pace.fraction(sum(times.values()))
    if not pace.is_device_bound() or fraction < _MIN_CONVOLUTION_FRACTION:
        return
    yield Match(
        title="convolution shapes are fixed, and cuDNN does not search for the fastest",
        fix="torch.backends.cudnn.benchmark = True before the first step",
        evidence=f"convolutions take {format_percent(fraction)} of the time of kernels and "
        f"launches, in the same shapes in all {facts.num_steps} recorded steps; "
        "cudnn.benchmark is off",
        events=tuple(times),
    )


# A smaller last batch is one more shape, searched once.
_MIN_VARYING_SHAPES = 2
# A script that slices its data has no loader to inspect; within so few steps an epoch's end is
# unlikely.
_FEW_STEPS = 3


@rule("KERN003", "CUDNN_BENCH_VARY")
def searched_again(case: RuleInput) -> Matches:
    facts = case.facts
    has_remainder = any(
        own.batch_size < 1 or own.num_samples % own.batch_size for own in facts.loaders
    )
    has_remainder |= not facts.loaders and facts.num_steps > _FEW_STEPS
    varies = facts.num_convolution_shapes >= _MIN_VARYING_SHAPES + has_remainder
    is_of_cudnn = case.device.vendor == "nvidia"
    if not case.trace.settings.cudnn_benchmark or not varies or not is_of_cudnn:
        return
    switched = (
        source.location(binding.statement)
        for source, binding in case.sources.bindings()
        if is_named(binding.name, "cudnn.benchmark") and not is_constant(binding.value, False)
    )
    times = device_times_ns(case, lambda kernel: kernel.family is Family.CONVOLUTION)
    yield Match(
        title="cuDNN searches for the fastest convolution again at each new shape",
        fix="torch.backends.cudnn.benchmark = False, or pad inputs to a few sizes",
        evidence=f"convolutions of {facts.num_convolution_shapes} different shapes in "
        f"{facts.num_steps} recorded steps; cudnn.benchmark is on",
        location=next(switched, facts.shapes_vary_at),
        events=tuple(times),
    )


_LAYERS = tuple(
    f"{kind}{dimensions}d"
    for kind in ("Conv", "ConvTranspose", "LazyConv")
    for dimensions in (1, 2, 3)
)
_NUM_INPUTS_WITH_BIAS = 3


@rule("KERN004", "CONV_BIAS")
def useless_biases(case: RuleInput) -> Matches:
    # By the memory of their results: convolutions with a bias and no reader yet, and those followed
    # by a batch norm.
    unread, found = dict[int, int](), dict[int, int]()
    gradients: dict[int, dict[int, Op]] = {}
    for index, op in case.each_on_device():
        name = bare_name(op)
        if name == CONVOLUTION_BACKWARD:
            gradients.setdefault(op.inputs[2].storage, {})[index] = op
        if op.phase is not Phase.FORWARD:
            continue
        is_norm = name in BATCH_NORMS and bool(op.attributes.get("training"))
        for position, spec in enumerate(op.inputs):
            convolution = unread.pop(spec.storage, None)
            if convolution is not None and is_norm and position == 0:
                found[spec.storage] = convolution
            elif convolution is None and name != "detach":
                # A second reader depends on the bias.
                found.pop(spec.storage, None)
        if name in CONVOLUTIONS and len(op.inputs) >= _NUM_INPUTS_WITH_BIAS:
            unread.update({spec.storage: index for spec in op.outputs if spec.storage >= 0})
    by_line: dict[Location | None, list[int]] = {}
    for index in sorted(found.values()):
        op = op_at(case.trace, index)
        weight, groups = op.inputs[1].shape, int(op.attributes.get("groups", 1) or 1)
        sizes = (weight[1] * groups, weight[0])
        if op.attributes.get("transposed"):
            sizes = (weight[0], weight[1] * groups)
        line = line_of_layer(case.sources, op, _LAYERS, sizes)
        by_line.setdefault(line, []).append(index)
    for location, convolutions in by_line.items():
        without_bias: dict[int, Op] = {}
        for index in convolutions:
            op = op_at(case.trace, index)
            without_bias[index] = replace(op, inputs=op.inputs[:2])
            for backward, gradient in gradients.get(op.inputs[1].storage, {}).items():
                mask = gradient.attributes.get("output_mask")
                changes = {} if mask is None else {"output_mask": [*mask[:2], False]}
                without_bias[backward] = replace(
                    gradient,
                    attributes={**gradient.attributes, **changes},
                    outputs=tuple(spec for spec in gradient.outputs if len(spec.shape) > 1),
                )
        count = len(convolutions)
        layers = "a convolution adds a bias" if count == 1 else f"{count} convolutions add a bias"
        yield Match(
            title=f"{layers} that a batch norm cancels",
            fix="bias=False in the convolution before a batch norm",
            evidence="the result of the convolution, bias added, is read by a batch norm in "
            "training mode, which subtracts the mean of each channel",
            location=location,
            events=tuple(sorted(without_bias)),
            edit=changed(without_bias),
        )


# A GPU wins from this size; in public reports, the CPU wins clearly up to 64 rows. cuSOLVER's chain
# of panels takes an L40S 0.36 µs per row (512 rows: 0.186 ms, 2,048: 0.951 ms), a CPU n³/3 FLOP at
# 80 GFLOP/s (256 rows: 68 µs): both take 110 µs at 300 rows. A GPU at half the clock takes twice as
# long, and equals the CPU at 400 rows.
# Source: torch.linalg.cholesky in https://github.com/ml-explore/mlx/pull/4262 (GPU) and
# https://trnsci.dev/trnsolver/benchmarks/ (CPU).
_MAX_SMALL_MATRIX = 400
_FACTORIZATIONS: Final = frozenset(
    ("_linalg_svd", "linalg_svd", "svd", "linalg_qr", "geqrf", "_linalg_eigh", "linalg_eigh",
     "linalg_eig", "linalg_eigvals", "_linalg_eigvals", "linalg_cholesky_ex", "linalg_cholesky",
     "cholesky", "linalg_inv_ex", "linalg_inv", "_linalg_solve_ex", "linalg_lstsq", "linalg_pinv",
     "linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet")
)  # fmt: skip


@rule("KERN005", "LINALG_SMALL")
def small_factorizations(case: RuleInput) -> Matches:
    small = [index for index, op in case.each_on_device() if _factorized(op) is not None]
    for location, events in by_line(case.trace, small):
        op = op_at(case.trace, events[0])
        rows, columns = _factorized(op) or (0, 0)
        what = bare_name(op).strip("_").removeprefix("linalg_").removesuffix("_ex")
        batch = max(1, op.inputs[0].numel // max(1, rows * columns))
        yield Match(
            title=f"{what} of {rows} × {columns} matrices on the GPU {times_per_step(len(events))}",
            fix="factorize on the CPU (.cpu() and back), many in one call, or by a closed form",
            evidence=f"{bare_name(op)} on {op.device}, {batch} matrices at a time",
            location=location,
            events=events,
        )


def _factorized(op: Op) -> tuple[int, int] | None:
    """Return rows and columns of the factorized matrix; None if there is no small one."""
    shapes = [spec.shape[-2:] for spec in op.inputs if len(spec.shape) > 1]
    if bare_name(op) not in _FACTORIZATIONS or not shapes or max(shapes[0]) > _MAX_SMALL_MATRIX:
        return None
    return shapes[0][0], shapes[0][1]

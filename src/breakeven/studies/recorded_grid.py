"""The step at every point of a grid, derived from as few recordings as possible."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from breakeven.capture import LoaderUse, TracedRun
from breakeven.errors import BreakevenError, Caveat, ScriptError
from breakeven.simulate import build_program
from breakeven.studies.batch_sizes import predicted_sizes, second_size, why_not_measured
from breakeven.studies.runner import Runner
from breakeven.studies.sweep_axes import Grid, Settings, Values, describe, points_of, values_at
from breakeven.trace import (
    Copy,
    Event,
    GraphLaunch,
    HostWork,
    Op,
    Phase,
    ScaledTrace,
    ScalingError,
    StepTrace,
    Sync,
    scaled_from_one,
)
from breakeven.units import NS_PER_S
from breakeven.verdict import AxisRole, AxisValue, SweepAxis

Step = StepTrace | BreakevenError
"""A step, or why there is none."""

# With fewer values, recording each is as quick as deriving them from three.
_FEWEST_TO_SCALE = 4
# Limit on tries with smaller batches, if large ones give another step.
_MOST_TRIES = 4
# Least rates of one core of a laptop; only the order of magnitude matters.
_CPU_FLOP_PER_S = 2.0e10
_CPU_BYTES_PER_S = 5.0e9


# A step recorded without changed batches or threads, and its settings.
Base = tuple[Settings, TracedRun]


class RecordedGrid:
    """Records steps, and derives all others from them.

    Args:
        runner: Records the steps.
        grid: All points of the sweep.
    """

    def __init__(self, runner: Runner, grid: Grid) -> None:
        self._runner = runner
        self.grid = grid
        # Put arguments before the batch size, since the script's loader depends on them.
        is_size = AxisRole.BATCH_SIZE
        self._order = sorted(grid.recorded_axes, key=lambda axis: axis.role is is_size)
        self._arguments = [axis for axis in self._order if axis.role is AxisRole.ARGUMENT]
        self._recorded: dict[Values, Step] = {}
        # The script's loader or its only batch size, by the values of the arguments.
        self._loaders: dict[Values, LoaderUse] = {}
        self._only_sizes: dict[Values, int] = {}
        self.bases: list[Base] = []
        # Caveats on the steps.
        self.caveats: list[Caveat] = []

    def record(self) -> dict[Values, Step]:
        """Return the step at every point, by the values of the recorded axes in order.

        If the script makes its own batches, then their size joins ``grid``, since it is measured.
        """
        found = self._build(self._order, {})
        if own_size := self._only_sizes.get(()):
            self.grid = self.grid.with_batch_size(own_size)
        axes = self.grid.recorded_axes
        return {
            values_at(settings, axes): found[values_at(settings, self._order)]
            for settings in points_of(axes)
        }

    def loader_at(self, settings: Settings) -> LoaderUse | None:
        """Return the script's own loader at a point; None if it has none."""
        return self._loaders.get(values_at(settings, self._arguments))

    def only_size_at(self, settings: Settings) -> int | None:
        """Return the only batch size of a script that makes its own batches."""
        return self._only_sizes.get(values_at(settings, self._arguments))

    def _build(self, axes: Sequence[SweepAxis], held: Settings) -> dict[Values, Step]:
        """Return the steps at the fixed settings, by the values of the other axes."""
        if not axes:
            return {(): self._record(held)}
        axis, rest = axes[0], axes[1:]
        if axis.role is AxisRole.BATCH_SIZE:
            steps = self._along_batch_size(axis, held)
            return {(value,): step for value, step in steps.items()}
        built: dict[AxisValue, dict[Values, Step]] = {}

        def step_at(value: AxisValue, others: Values) -> Step:
            if value not in built:
                built[value] = self._build(rest, {**held, axis.name: value})
            return built[value][others]

        found: dict[Values, Step] = {}
        for others in itertools.product(*(other.values for other in rest)):
            steps, differs_at = steps_along(axis, functools.partial(step_at, others=others))
            found |= {(value, *others): step for value, step in steps.items()}
            if differs_at is not None:
                message = (
                    f"the step at {axis.name} {differs_at} differs from that at smaller values: an "
                    "epoch may end in it, or the script fails there; GPU times are those of the "
                    "step at smaller values"
                )
                caveat = Caveat(code="step-differs", message=message)
                self.caveats += [] if caveat in self.caveats else [caveat]
        return found

    def _along_batch_size(self, axis: SweepAxis, held: Settings) -> Mapping[AxisValue, Step]:
        """Return the step at every batch size of the script's DataLoader."""
        own = self._record(held)
        if isinstance(own, BreakevenError):
            return dict.fromkeys(axis.values, own)
        arguments = values_at(held, self._arguments)
        loader = self._loaders.get(arguments)
        if loader is None:
            try:
                scaled = scaled_from_one(own)
            except ScalingError as error:
                return dict.fromkeys(axis.values, _no_loader(error.message))
            base = scaled.first.batch_size
            assert base is not None, "a step is scaled from its batch size"
            self._only_sizes[arguments] = base
            self.caveats.append(predicted_sizes(base))
            return {value: scaled.at(int(value)) for value in (*axis.values, base)}
        size, per_step = loader.batch_size, loader.batches_per_step
        other = second_size(size, work_ns(own))
        second = self._record({**held, axis.name: other}, loader)
        if isinstance(second, StepTrace):
            try:
                scaled = ScaledTrace(own, second)
            except ScalingError:
                pass  # the step changes with the size, so record each
            else:
                return {value: scaled.at(int(value) * per_step) for value in axis.values}
        return {
            value: own if value == size else self._record({**held, axis.name: value}, loader)
            for value in axis.values
        }

    def _record(self, settings: Settings, loader: LoaderUse | None = None) -> Step:
        """Return the step at a point, recorded once; a loader makes it use another batch size."""
        key = tuple(settings.get(axis.name, "") for axis in self._order)
        if key in self._recorded:
            return self._recorded[key]
        change = self.grid.change_at(settings, loader)
        size = change.new_batch_size
        try:
            traced = self._runner.record(change, f" at {describe(settings)}" if settings else "")
            if size and (traced.loader is None or traced.loader.batch_size != size):
                raise ScriptError(
                    f"{self._runner.request.target.label} does not load batches of {size} when its "
                    "DataLoader is asked to",
                    hint="give the script an option for its batch size and sweep that: "
                    "--over batch_size=VALUES -- --batch-size {batch_size}",
                )
        except BreakevenError as error:
            self._recorded[key] = error
            return error
        self._recorded[key] = traced.trace
        if loader is None:
            self.bases.append((settings, traced))
            if traced.loader is not None:
                self._loaders[values_at(settings, self._arguments)] = traced.loader
        return traced.trace


def _no_loader(because: str) -> ScriptError:
    return ScriptError(
        "the script feeds its batches by hand, so their size cannot be set from outside, and its "
        f"recorded step cannot be scaled: {because}",
        hint="if it has an option for it, sweep that: --over batch_size=VALUES -- --batch-size "
        "{batch_size}",
    )


def steps_along(
    axis: SweepAxis, step_at: Callable[[AxisValue], Step]
) -> tuple[dict[AxisValue, Step], int | None]:
    """Return the step at every value of an axis, and the first value at which it differs.

    If the step is regular along the axis, then three values determine the others.

    Args:
        axis: The axis.
        step_at: Records the step at a value, once.
    """
    found: dict[AxisValue, Step] = {}

    def fill(samples: Sequence[int], values: Sequence[int]) -> bool:
        """Fill in the values if the samples determine them; return whether they do."""
        traced: dict[int, StepTrace] = {}
        for value in samples:
            step = step_at(value)
            if not isinstance(step, StepTrace):
                return False
            traced[value] = step
        scaling = scale_knob(traced, values)
        if scaling is None:
            return False
        found.update({value: scaling(value) for value in values})
        return True

    whole = sorted(value for value in axis.values if isinstance(value, int))
    differs_at: int | None = None
    if len(whole) < max(len(axis.values), _FEWEST_TO_SCALE):
        pass  # record each
    else:
        # At large batch sizes an epoch has few steps, and some of these are cut off or evaluate the
        # model. A step recorded there may differ from that of smaller batches; if it does, derive
        # it from those. Another knob may change the step for good: then record each value.
        known = _recordable(step_at(whole[0]), whole)
        last, not_alike = known[-1], None
        for _ in range(_MOST_TRIES if axis.name == "batch_size" else 1):
            between = [value for value in known if whole[0] < value < last]
            if not between:
                break
            middle = _middle(between, whole[0], last)
            if fill((whole[0], middle, last), whole):
                differs_at = not_alike
                break
            last, not_alike = middle, last
    steps = {value: found[value] if value in found else step_at(value) for value in axis.values}
    return steps, differs_at


def work_ns(step: StepTrace) -> float:
    """Estimate how long a CPU computes for a step, from its work.

    Recorded times are unsuitable, since a recorder slows down the code that it records.
    """
    kernels = build_program(step).kernels
    flop = sum(kernel.flop for kernel in kernels)
    num_bytes = sum(kernel.num_bytes for kernel in kernels)
    return NS_PER_S * (flop / _CPU_FLOP_PER_S + num_bytes / _CPU_BYTES_PER_S)


def _recordable(first: Step, values: Sequence[int]) -> list[int]:
    """Return the values whose steps are expected to be short and small, and the smallest one."""
    if not isinstance(first, StepTrace) or values[0] < 1:
        return list(values)
    smallest, duration_ns, num_bytes = values[0], work_ns(first), first.peak_memory_bytes
    # A width enters the work twice, most other knobs once.
    growths = ((value, (value / smallest) ** 2) for value in values)
    return [
        value
        for value, growth in growths
        if value == smallest or why_not_measured(duration_ns * growth, num_bytes * growth) is None
    ]


def _middle(values: Sequence[int], low: int, high: int) -> int:
    """Return the value closest to the geometric mean of ``low`` and ``high``."""
    if low < 1:
        return values[len(values) // 2]
    return min(values, key=lambda value: abs(math.log(value * value / (low * high))))


_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
# Attributes with the position that an operator reads in a tensor. A step in the middle of an epoch
# reads another position than one at its start, but does the same work.
_POSITIONS = frozenset({"start", "end", "index", "storage_offset", "seed", "offset"})


def scale_knob(
    traced: Mapping[int, StepTrace], values: Sequence[int]
) -> Callable[[int], StepTrace] | None:
    """Return a function from a knob's value to its step, or None if that is not exact.

    Sizes are assumed to be affine functions of the knob. The outer two traces determine them, the
    inner one must agree, and every value must give whole sizes.

    Args:
        traced: The step at three values of the knob.
        values: All requested values.
    """
    low, middle, high = sorted(traced)
    traced = _with_common_work(traced)
    # `ScaledTrace` uses the batch size as the knob, and needs it to be positive.
    shift = 1 - min(low, *values)
    knobs = {value: replace(trace, batch_size=value + shift) for value, trace in traced.items()}
    try:
        scaled = ScaledTrace(knobs[low], knobs[high])
    except ScalingError:
        return None
    if _shapes(scaled.at(middle + shift)) != _shapes(knobs[middle]):
        return None
    ones, others = (_whole_numbers(_shapes(knobs[value])) for value in (low, high))
    stride = math.gcd(*(value - low for value in values))
    if len(ones) != len(others) or any(
        (other - one) * stride % (high - low) for one, other in zip(ones, others, strict=True)
    ):
        return None
    first, last = traced[low], traced[high]
    is_one_model = len({step.num_parameters for step in traced.values()}) == 1
    # Other inputs that look like parameters, such as a batch, must not grow with the model.
    unowned = {step.num_parameters - _num_owned(step) for step in traced.values()}
    if not is_one_model and len(unowned) > 1:
        return None

    def batch_size(value: int) -> int | None:
        if first.batch_size is None or last.batch_size is None:
            return None
        growth = (last.batch_size - first.batch_size) * (value - low) / (high - low)
        return first.batch_size + round(growth)

    def peak_bytes(value: int) -> int:
        """Return the parabola through the traced peaks: a width enters a weight twice."""
        total = 0.0
        for at, step in traced.items():
            weights = ((value - other) / (at - other) for other in traced if other != at)
            total += math.prod(weights) * step.peak_memory_bytes
        # Beyond the traced values a parabola may bend down, but a larger step needs no less memory.
        below = [at for at in sorted(traced) if at <= value]
        return max(round(total), traced[below[-1]].peak_memory_bytes if below else 0)

    def step_at(value: int) -> StepTrace:
        if value in traced:
            return traced[value]
        trace = scaled.at(value + shift)
        grown = 0 if is_one_model else _num_owned(trace) - _num_owned(first)
        return replace(
            trace,
            batch_size=batch_size(value),
            num_parameters=first.num_parameters + grown,
            peak_memory_bytes=peak_bytes(value),
        )

    is_consistent = all(batch_size(value) == step.batch_size for value, step in traced.items())
    return step_at if is_consistent else None


def _with_common_work(traced: Mapping[int, StepTrace]) -> dict[int, StepTrace]:
    """Return the traces with only the host work that occurs in all of them.

    The script's own work recurs at the same place of each step; other work was a pause of a busy
    machine.
    """

    def placed(trace: StepTrace) -> Iterator[tuple[tuple[int, str], Event]]:
        """Yield each event with its kind of host work and the number of other events before it."""
        position = 0
        for event in trace.events:
            yield (position, event.kind if isinstance(event, HostWork) else ""), event
            position += not isinstance(event, HostWork)

    common = set[tuple[int, str]].intersection(
        *({place for place, _ in placed(trace)} for trace in traced.values())
    )
    return {
        value: replace(
            trace,
            events=tuple(
                event
                for place, event in placed(trace)
                if place in common or not isinstance(event, HostWork)
            ),
        )
        for value, trace in traced.items()
    }


def _num_owned(trace: StepTrace) -> int:
    """Return the elements that a forward pass reads and that the step has not made."""
    made = {copy.storage for copy in trace.copies if copy.storage >= 0}
    owned: dict[int, int] = {}
    for op in trace.ops:
        if op.phase is not Phase.FORWARD or op.is_on_host:
            continue
        for tensor in op.inputs:
            is_owned = tensor.storage not in made and tensor.dtype in _FLOATS
            if is_owned and tensor.shape:
                owned[tensor.storage] = max(owned.get(tensor.storage, 0), tensor.numel)
        made.update(tensor.storage for tensor in op.outputs if tensor.storage not in owned)
    return sum(owned.values())


def _shapes(trace: StepTrace) -> list[object]:
    """Return the properties that determine a step's work, without durations and places."""
    return [_shape(event) for event in trace.events if not isinstance(event, HostWork)]


def _shape(event: Op | Copy | Sync | GraphLaunch) -> object:
    match event:
        case Op():
            tensors = tuple(
                (tensor.shape, tensor.dtype, tensor.device)
                for tensor in (*event.inputs, *event.outputs)
            )
            whole = tuple(
                (name, _whole_part(value))
                for name, value in event.attributes.items()
                if name not in _POSITIONS
            )
            return (event.name, event.device, event.phase, event.is_replayed, tensors, whole)
        case Copy():
            return ("copy", event.source, event.destination, event.is_blocking, event.num_bytes)
        case Sync():
            return ("sync", event.kind, event.num_bytes)
        case GraphLaunch():
            return ("graph",)


def _whole_part(value: object) -> object:
    """Return an attribute without its floats: a learning rate changes no work."""
    if isinstance(value, float):
        return None
    if isinstance(value, list | tuple):
        return tuple(_whole_part(item) for item in cast("Sequence[object]", value))
    return value


def _whole_numbers(value: object) -> list[int]:
    """Return all whole numbers inside, in order; steps that differ only in sizes have as many."""
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return [number for item in items for number in _whole_numbers(item)]
    return [value] if isinstance(value, int) else []

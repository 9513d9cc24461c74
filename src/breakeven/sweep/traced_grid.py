"""The step at every point of a grid, from as few recordings as determine it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from breakeven.capture import LoaderUse, TracedRun
from breakeven.errors import BreakevenError, Caveat, ScriptError
from breakeven.session import predicted_sizes, second_size, why_not_measured
from breakeven.simulate import build_program
from breakeven.sweep.grid import GridRuns, PointSettings, Values, grid_of, traced_axes, values_at
from breakeven.sweep.scaling import is_same_step, scale_knob
from breakeven.trace import ScaledTrace, ScalingError, StepTrace, scaled_from_one
from breakeven.units import NS_PER_S
from breakeven.verdict import AxisRole, AxisValue, SweepAxis

Step = StepTrace | BreakevenError
"""A step, or why there is none."""

# Three values or fewer are as soon recorded as derived from three.
_FEWEST_TO_SCALE = 4
# How often smaller batches are tried where the step is another one at large ones.
_MOST_TRIES = 4
# What one core of a laptop does at least; only the order of magnitude matters.
_CPU_FLOP_PER_S = 2.0e10
_CPU_BYTES_PER_S = 5.0e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A step that was recorded with nothing of it changed, at which its time is measured too."""

    settings: PointSettings
    traced: TracedRun


class TracedGrid:
    """Records steps, and derives all others from them.

    Args:
        runs: Records the steps.
        axes: All axes of the sweep.
    """

    def __init__(self, runs: GridRuns, axes: Sequence[SweepAxis]) -> None:
        self._runs = runs
        self._axes = traced_axes(axes)
        # Arguments before the batch size: the script's own loader depends on them.
        self._order = sorted(self._axes, key=lambda axis: axis.role is AxisRole.BATCH_SIZE)
        self._recorded: dict[Values, Step] = {}
        self._loaders: dict[Values, LoaderUse] = {}
        self._hand_fed: dict[Values, int] = {}
        self.bases: list[Base] = []
        # What to know of the steps.
        self.caveats: list[Caveat] = []

    def steps(self) -> dict[Values, Step]:
        """Return the step at every point, by the values of the traced axes in their order."""
        found = self._build(self._order, {})
        return {
            values_at(settings, self._axes): found[values_at(settings, self._order)]
            for settings in grid_of(self._axes)
        }

    def loader_at(self, settings: Mapping[str, AxisValue]) -> LoaderUse | None:
        """Return what the script's own loader does, where its batch size is to be changed."""
        return self._loaders.get(values_at(settings, self._arguments))

    def only_size_at(self, settings: Mapping[str, AxisValue]) -> int | None:
        """Return the one batch size of a script that feeds its batches by hand."""
        return self._hand_fed.get(values_at(settings, self._arguments))

    @property
    def _arguments(self) -> list[SweepAxis]:
        return [axis for axis in self._order if axis.role is AxisRole.ARGUMENT]

    def _build(self, axes: Sequence[SweepAxis], held: PointSettings) -> dict[Values, Step]:
        """Return the steps at the held settings, by the values of the other axes."""
        if not axes:
            return {(): self._record(held)}
        axis, rest = axes[0], axes[1:]
        if axis.role is AxisRole.BATCH_SIZE:
            steps = self._along_batch_size(axis, held)
            return {(value,): step for value, step in steps.items()}
        built: dict[AxisValue, dict[Values, Step]] = {}

        def step_at(value: AxisValue, others: Values) -> Step:
            if value not in built:
                built[value] = self._build(rest, held | {axis.name: value})
            return built[value][others]

        found: dict[Values, Step] = {}
        for others in itertools.product(*(other.values for other in rest)):
            along = ArgumentAxis(axis, functools.partial(step_at, others=others))
            found |= {(value, *others): step for value, step in along.steps().items()}
            if along.differs_at is not None:
                self._note_difference(axis, along.differs_at)
        return found

    def _note_difference(self, axis: SweepAxis, value: int) -> None:
        caveat = Caveat(
            code="step-differs",
            message=f"no step like those at smaller ones was recorded at {axis.name} {value}: an "
            "epoch may end in it, or the script fails there; the GPUs' times are those of the step "
            "at smaller ones",
        )
        if caveat not in self.caveats:
            self.caveats.append(caveat)

    def _along_batch_size(self, axis: SweepAxis, held: PointSettings) -> dict[AxisValue, Step]:
        """Return the step at every batch size of the script's DataLoader."""
        own = self._record(held)
        if isinstance(own, BreakevenError):
            return dict.fromkeys(axis.values, own)
        loader = self._loaders.get(values_at(held, self._arguments))
        if loader is None:
            return self._scaled_from_one(own, axis, held)
        size = loader.batch_size
        other = second_size(size, work_ns(own))
        second = self._record(held | {axis.name: other}, loader)
        if isinstance(second, StepTrace):
            try:
                scaled = ScaledTrace(own, second)
            except ScalingError:
                pass  # another step at another size: each is recorded
            else:
                return {
                    value: scaled.at(int(value) * loader.batches_per_step) for value in axis.values
                }
        return {
            value: own if value == size else self._record(held | {axis.name: value}, loader)
            for value in axis.values
        }

    def _scaled_from_one(
        self, own: StepTrace, axis: SweepAxis, held: PointSettings
    ) -> dict[AxisValue, Step]:
        """Return the step at batch sizes that nobody can set from outside."""
        try:
            scaled = scaled_from_one(own)
        except ScalingError as error:
            return dict.fromkeys(axis.values, _no_loader(error.message))
        base = scaled.first.batch_size
        assert base is not None, "a step is scaled from its batch size"
        self._hand_fed[values_at(held, self._arguments)] = base
        self.caveats.append(predicted_sizes(base))
        return {value: scaled.at(int(value)) for value in axis.values}

    def _record(self, settings: PointSettings, loader: LoaderUse | None = None) -> Step:
        key = tuple(settings.get(axis.name, "") for axis in self._order)
        if key not in self._recorded:
            try:
                traced = self._runs.trace(settings, loader)
            except BreakevenError as error:
                self._recorded[key] = error
            else:
                self._recorded[key] = traced.trace
                if loader is None:
                    self.bases.append(Base(settings=settings, traced=traced))
                    if traced.loader is not None:
                        arguments = values_at(settings, self._arguments)
                        self._loaders[arguments] = traced.loader
        return self._recorded[key]


def _no_loader(because: str) -> ScriptError:
    return ScriptError(
        "the script feeds its batches by hand, so their size cannot be set from outside, and its "
        f"recorded step cannot be scaled: {because}",
        hint="if it has an option for it, sweep that: --over batch_size=VALUES -- --batch-size "
        "{batch_size}",
    )


class ArgumentAxis:
    """Derives the steps along one axis.

    Args:
        axis: The axis.
        step_at: Records the step at a value, once.
    """

    def __init__(self, axis: SweepAxis, step_at: Callable[[AxisValue], Step]) -> None:
        self._axis = axis
        self._step_at = step_at
        self._found: dict[AxisValue, Step] = {}
        # Where the step that was recorded, if any, is not the one that is taken for it.
        self.differs_at: int | None = None

    def steps(self) -> dict[AxisValue, Step]:
        """Return the step at every value."""
        numbers = [value for value in self._axis.values if not isinstance(value, str)]
        if len(numbers) == len(self._axis.values) >= _FEWEST_TO_SCALE:
            whole = sorted(value for value in numbers if isinstance(value, int))
            if len(whole) < len(numbers):
                self._fill_unchanged(sorted(numbers))
            elif self._axis.name == "batch_size":
                self._fill_batch_sizes(whole)
            else:
                self._fill_whole(whole)
        return {
            value: self._found[value] if value in self._found else self._step_at(value)
            for value in self._axis.values
        }

    def _fill_unchanged(self, values: Sequence[float]) -> None:
        """Fill in one step for all where a number changes nothing, as a learning rate does."""
        steps = [self._step_at(values[at]) for at in (0, len(values) // 2, -1)]
        one = steps[0]
        if isinstance(one, StepTrace) and all(
            isinstance(other, StepTrace) and is_same_step(one, other) for other in steps[1:]
        ):
            self._found |= dict.fromkeys(values, one)

    def _fill_batch_sizes(self, values: Sequence[int]) -> None:
        """Fill in the steps of all batch sizes from small ones.

        At large batch sizes an epoch has few steps, of which some are cut off or evaluate the
        model: what is recorded there need not be the step that smaller batches have. Then it is
        taken from these.
        """
        known = _recordable(self._step_at(values[0]), values)
        last = known[-1]
        differs_at: int | None = None
        for _ in range(_MOST_TRIES):
            between = [value for value in known if values[0] < value < last]
            if not between:
                return
            middle = _middle(between, values[0], last)
            if self._scale((values[0], middle, last), values):
                self.differs_at = differs_at
                return
            differs_at = last
            last = middle

    def _fill_whole(self, values: Sequence[int]) -> None:
        """Fill in the steps of all values, in parts where a part alone is regular."""
        known = _recordable(self._step_at(values[0]), values)
        beyond = [value for value in values if value > known[-1]]
        self._fill_part(known, beyond)

    def _fill_part(self, values: Sequence[int], beyond: Sequence[int]) -> None:
        """Fill in from the first to the last value, and beyond where that determines it too."""
        if len(values) < _FEWEST_TO_SCALE:
            return
        middle = _middle(values[1:-1], values[0], values[-1])
        if self._scale((values[0], middle, values[-1]), (*values, *beyond)):
            return
        at = values.index(middle)
        self._fill_part(values[: at + 1], ())
        self._fill_part(values[at:], beyond)

    def _scale(self, samples: Sequence[int], values: Sequence[int]) -> bool:
        """Fill in the values if the samples determine them; return whether they do."""
        traced: dict[int, StepTrace] = {}
        for value in samples:
            step = self._step_at(value)
            if not isinstance(step, StepTrace):
                return False
            traced[value] = step
        scaling = scale_knob(traced, values)
        if scaling is None:
            return False
        self._found |= {value: scaling.at(value) for value in values}
        return True


def work_ns(step: StepTrace) -> float:
    """Return about how long a CPU computes for a step, by its work.

    What was recorded says little of it: a recorder slows down what it sees.
    """
    kernels = build_program(step).kernels
    flop = sum(kernel.flop for kernel in kernels)
    num_bytes = sum(kernel.num_bytes for kernel in kernels)
    return NS_PER_S * (flop / _CPU_FLOP_PER_S + num_bytes / _CPU_BYTES_PER_S)


def _recordable(first: Step, values: Sequence[int]) -> list[int]:
    """Return the values, from the smallest on, whose steps are expected to be short and small."""
    if not isinstance(first, StepTrace) or values[0] < 1:
        return list(values)
    duration_ns = work_ns(first)
    return [
        value
        for value in values
        # A width enters the work twice, most others once.
        if value == values[0]
        or why_not_measured(
            duration_ns * (value / values[0]) ** 2,
            first.peak_memory_bytes * (value / values[0]) ** 2,
        )
        is None
    ]


def _middle(values: Sequence[int], low: int, high: int) -> int:
    """Return the value that is as many times above ``low`` as it is below ``high``."""
    if low < 1:
        return values[len(values) // 2]
    return min(values, key=lambda value: abs(math.log(value * value / (low * high))))

"""The step at every point of a grid, from as few recordings as tell it exactly."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from breakeven.capture import LoaderUse, TracedRun
from breakeven.errors import BreakevenError, Caveat, ScriptError
from breakeven.session import LONGEST_STEP_NS
from breakeven.sweep.argument_axis import ArgumentAxis, Step, work_ns
from breakeven.sweep.grid import Settings, Values, grid_of, traced_axes, values_at
from breakeven.sweep.grid_runs import GridRuns
from breakeven.trace import ScaledTrace, ScalingError, StepTrace
from breakeven.verdict import AxisRole, AxisValue, SweepAxis


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A step that was recorded with nothing of it changed, at which its time is measured too."""

    settings: Settings
    traced: TracedRun


class TracedGrid:
    """Records steps, and tells all others from them.

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

    @property
    def _arguments(self) -> list[SweepAxis]:
        return [axis for axis in self._order if axis.role is AxisRole.ARGUMENT]

    def _build(self, axes: Sequence[SweepAxis], held: Settings) -> dict[Values, Step]:
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

    def _along_batch_size(self, axis: SweepAxis, held: Settings) -> dict[AxisValue, Step]:
        """Return the step at every batch size of the script's DataLoader."""
        own = self._record(held)
        if isinstance(own, BreakevenError):
            return dict.fromkeys(axis.values, own)
        loader = self._loaders.get(values_at(held, self._arguments))
        if loader is None:
            return dict.fromkeys(axis.values, _no_loader())
        # As long as a step here is short, a larger one is as soon recorded, and told exactly.
        size = loader.batch_size
        is_short = work_ns(own) < LONGEST_STEP_NS
        other = size * 2 if is_short or size == 1 else size // 2
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

    def _record(self, settings: Settings, loader: LoaderUse | None = None) -> Step:
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


def _no_loader() -> ScriptError:
    return ScriptError(
        "the script feeds its batches by hand, so their size cannot be set from outside",
        hint="if it has an option for it, sweep that: --over batch_size=VALUES -- --batch-size "
        "{batch_size}",
    )

"""Rows of a table with their traced steps, and their predictions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from breakeven.cost import (
    EfficiencyTable,
    StepCosts,
    StepEffects,
    era_of,
    host_for,
    load_efficiencies,
    load_step_effects,
)
from breakeven.device import DeviceSpec, HostSpec, find_device
from breakeven.errors import BreakevenError, Caveat
from breakeven.progress import Progress
from breakeven.report import RowPrediction, Unpredictable
from breakeven.simulate import (
    CompileMode,
    ModelSize,
    MultiGpuTable,
    PhaseTimes,
    Program,
    StepPrediction,
    build_program,
    compiled_step,
    load_multi_gpu_table,
    may_change_layout,
    model_size,
    phase_times,
    predict_multi_gpu,
    predict_steps,
    setup_of,
)
from breakeven.trace import StepTrace
from breakeven.validate.table import MeasuredRow
from breakeven.workloads import trace_cases

RowOutcome = RowPrediction | Unpredictable


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The fitted tables that predictions use.

    Args:
        efficiencies: Fitted to benchmarks of operators.
        effects: Fitted to whole steps.
        multi_gpu: Fitted to steps on several GPUs.
    """

    efficiencies: EfficiencyTable
    effects: StepEffects
    multi_gpu: MultiGpuTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRows:
    """Rows with their steps.

    Args:
        rows: The rows.
        steps: The step of each row at its batch size, or why it has none; equal steps share one
            object.
    """

    rows: tuple[MeasuredRow, ...]
    steps: tuple[StepTrace | Unpredictable, ...]
    _models: dict[int, Model] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[MeasuredRow], *, progress: Progress) -> TracedRows:
        """Trace the step of each row; equal ones only once."""

        def report(num_known: int, num_wanted: int) -> None:
            progress.detail(f"traced {num_known} of {num_wanted} steps")

        reasons: list[Unpredictable | None] = []
        for row in rows:
            reason = None
            if row.not_modelled:
                reason = Unpredictable(code="not-modelled", reason=row.not_modelled)
            elif row.compile != "none" and row.compile not in _COMPILE_MODES:
                reason = Unpredictable(
                    code="compiled",
                    reason=f"steps compiled as “{row.compile}” are not predicted; those of the "
                    f"modes {', '.join(_COMPILE_MODES)} are",
                )
            reasons.append(reason)
        cases = [row.case for row, reason in zip(rows, reasons, strict=True) if not reason]
        traces = trace_cases(cases, progress=report)
        at_size: dict[tuple[object, int, str, bool], StepTrace | Unpredictable] = {}
        steps: list[StepTrace | Unpredictable] = []
        for row, reason in zip(rows, reasons, strict=True):
            if reason is not None:
                steps.append(reason)
                continue
            mode = _COMPILE_MODES.get(row.compile)
            may_change = mode is not None and may_change_layout(row.framework)
            key = (row.case, row.batch_size, row.compile, may_change)
            if key not in at_size:
                trace = traces[row.case]
                if isinstance(trace, BreakevenError):
                    step = Unpredictable(code="no-trace", reason=trace.sentence)
                else:
                    step = trace.at(row.batch_size)
                    if mode is not None:
                        program = build_program(step)
                        compiled = compiled_step(program, mode, may_change_layout=may_change)
                        step = compiled.edit.apply(step)
                at_size[key] = step
            steps.append(at_size[key])
        return cls(rows=tuple(rows), steps=tuple(steps))

    def predict(self, positions: Iterable[int], calibration: Calibration) -> tuple[RowOutcome, ...]:
        """Return the outcomes of the rows at ``positions``."""
        places = Places(calibration)
        # Steps on two, three and four GPUs share the prediction for one GPU.
        lone: dict[tuple[int, Place], StepPrediction] = {}
        times: dict[tuple[int, Place], PhaseTimes] = {}
        outcomes: list[RowOutcome] = []
        for position in positions:
            row, step = self.rows[position], self.steps[position]
            if isinstance(step, Unpredictable):
                outcomes.append(step)
                continue
            place = places.of(row)
            key = (id(step), place)
            if key not in lone:
                program = self.model(step).program.with_costs(place.costs)
                (lone[key],) = predict_steps(program, [place.device], place.host)
            prediction = lone[key]
            caveats = place.caveats
            if row.num_devices > 1:
                model = self.model(step)
                if key not in times:
                    times[key] = model.times(place)
                setup, assumed = setup_of(row.note, row.num_devices)
                prediction = predict_multi_gpu(
                    prediction,
                    times[key],
                    model.size,
                    place.host,
                    setup,
                    costs=place.costs,
                    table=calibration.multi_gpu,
                ).step
                caveats = (*caveats, *assumed)
            outcomes.append(
                RowPrediction(
                    estimate=prediction.estimate,
                    bound=prediction.bound,
                    caveats=(*prediction.caveats, *caveats, *row.caveats),
                )
            )
        return tuple(outcomes)

    def model(self, step: StepTrace) -> Model:
        """Return the lowered model of a step of ``steps``; each is lowered once."""
        model = self._models.get(id(step))
        if model is None:
            model = Model(program=build_program(step), size=model_size(step))
            self._models[id(step)] = model
        return model


def machine_of(row: MeasuredRow) -> str:
    """Return the name under which the effects of the row's machine are stored."""
    return ", ".join(word for word in (row.device, row.host, row.framework) if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The parts of a step that do not depend on the place."""

    program: Program
    size: ModelSize

    def times(self, place: Place) -> PhaseTimes:
        """Return the times of the step's phases in a place."""
        program = self.program.with_costs(place.costs)
        return phase_times(program, [place.device], place.host)[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """The machine of a row, and the costs of a step there."""

    device: DeviceSpec
    host: HostSpec
    costs: StepCosts
    caveats: tuple[Caveat, ...]


class Places:
    """The places of rows under one calibration; each is built once."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._places: dict[str, Place] = {}

    def of(self, row: MeasuredRow) -> Place:
        """Return the place of a row; equal machines share one object."""
        machine = machine_of(row)
        if machine not in self._places:
            costs = StepCosts(
                efficiencies=self._calibration.efficiencies,
                effects=self._calibration.effects,
                era=era_of(row.framework),
                machine=machine,
            )
            host, caveat = host_for(row.host, era_of(row.framework))
            self._places[machine] = Place(
                device=find_device(row.device),
                host=msgspec.structs.replace(host, log_sigma=costs.host_log_sigma(host)),
                costs=costs,
                caveats=() if caveat is None else (caveat,),
            )
        return self._places[machine]


# Names in tables for modes of torch.compile: Inductor with CUDA graphs is reduce-overhead.
_COMPILE_MODES = {
    **{mode.value: mode for mode in CompileMode},
    "default+cudagraphs": CompileMode.REDUCE_OVERHEAD,
}


class Predictor(Protocol):
    """Predicts rows of tables, from one calibration or one per fold."""

    def predict(
        self, rows: Sequence[MeasuredRow], *, training: Sequence[MeasuredRow] = ()
    ) -> Sequence[RowPrediction | Unpredictable]:
        """Return one outcome per row, in the order of the rows.

        Args:
            rows: Rows whose devices are in the catalogue; their workloads may be unknown.
            training: Further such rows to learn from; they are not predicted.
        """
        ...


def shipped_calibration() -> Calibration:
    """Return the calibration that ships with the package."""
    return Calibration(
        efficiencies=load_efficiencies(),
        effects=load_step_effects(),
        multi_gpu=load_multi_gpu_table(),
    )


class ShippedPredictor:
    """Predicts with the shipped calibration, and marks the rows that it was fitted to.

    Args:
        progress: Progress callback.
    """

    def __init__(self, *, progress: Progress) -> None:
        self._progress = progress

    def predict(
        self, rows: Sequence[MeasuredRow], *, training: Sequence[MeasuredRow] = ()
    ) -> Sequence[RowOutcome]:
        """Return one outcome per row; ``training`` is ignored."""
        steps = TracedRows.of(rows, progress=self._progress)
        calibration = shipped_calibration()
        seen = {*calibration.effects.calibrated_on, *calibration.multi_gpu.calibrated_on}
        return tuple(
            msgspec.structs.replace(outcome, is_calibrated_on=fingerprint(row) in seen)
            if isinstance(outcome, RowPrediction)
            else outcome
            for row, outcome in zip(rows, steps.predict(range(len(rows)), calibration), strict=True)
        )


# A model family is a stem of names; its members differ in depth and width.
_FAMILY_STEMS = re.compile(r"[a-z]+(?:_resnet)?", re.IGNORECASE)
# timm prefixes an architecture with the source of its weights.
_TRAINERS = re.compile(r"^(?:gluon|tv|ssl|swsl|ig|tf|legacy|ens_adv)_")


def model_family_of(workload: str) -> str:
    """Return the model family of a workload: ``torchvision:resnet`` for all ResNets.

    Wide ResNets and ResNeXts are families of their own, by their names.
    """
    kind, _, rest = workload.partition(":")
    name = rest.partition("?")[0]
    if kind in ("llm", "mpt", "gpt2"):
        # All of these are GPT-2 with other sizes, as is a model of transformers.
        return "transformers:GPT2"
    if kind == "transformers":
        # Cut the task off: BertForQuestionAnswering, BertModel.
        name = re.sub(r"(?:LMHead|For[A-Z]|Model|PreTrained).*", "", name)
        return f"{kind}:{name}"
    if kind == "timm":
        name = _TRAINERS.sub("", name)
    stem = _FAMILY_STEMS.match(name)
    return f"{kind}:{stem.group(0).rstrip('_') if stem else name}"


def fingerprint(row: MeasuredRow) -> str:
    """Return a hash that identifies a row by its step, machine and measured time."""
    facts = (
        row.workload, row.device, row.num_devices, row.precision, row.batch_size, row.phase,
        row.optimizer, row.h2d, row.host, row.framework, f"{row.value_ns:.6g}",
    )  # fmt: skip
    return hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:10]

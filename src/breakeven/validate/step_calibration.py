"""What ships: fitted to every step of a table, with a spread from steps left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from breakeven.calibrate import fit_multi_gpu, fit_step_effects
from breakeven.cost import KernelSpread, Spread, StepEffects, era_of, load_efficiencies
from breakeven.device import find_device, known_device
from breakeven.errors import BreakevenError
from breakeven.progress import Progress
from breakeven.simulate import Bound, MultiGpuTable, Strategy
from breakeven.trace import NumberFormat
from breakeven.validate.predictor import (
    HeldOutPredictor,
    fingerprint,
    gpu_of,
    provenance_of,
    shipped_calibration,
)
from breakeven.validate.table_row import MeasuredRow
from breakeven.validate.traced_rows import RowOutcome, TracedRows
from breakeven.verdict import LeaveOut, RowPrediction

# Before any row was left out: kernels as uncertain as benchmarks say, hosts as by datasheets.
_NEUTRAL = Spread(
    calibrated=KernelSpread.uniform(1.0),
    unseen=KernelSpread.uniform(1.0),
    known_host_log_sigma=0.2,
    unknown_host_log_sigma=0.35,
)
_COVERAGE_PERCENTILE = 90.0
_LEAST_ROWS = 40
_HOST = "host"
_HOST_BOUNDS = frozenset({Bound.LAUNCH, Bound.SYNC, Bound.HOST_OPTIMIZER})


def calibrate_on_steps(
    rows: Sequence[MeasuredRow], *, command: str, progress: Progress
) -> StepEffects:
    """Return effects fitted to all steps on single GPUs, and their spread.

    The spread makes the 90 % intervals hold 90 % of the rows that were left out: by model family
    for a GPU and a machine whose steps are known, by GPU for others; each of its figures those of
    the steps that it decides: bound by the host, in fp64, or bound by memory or arithmetic, or of
    software of 2018 and before. They are all that is taken from residuals; they move no prediction.
    Sources that timed one GPU alone have no part in what is found by GPU.

    Args:
        rows: Measured steps; those on unknown devices or several GPUs are left out.
        command: What repeats this.
        progress: Progress callback.

    Raises:
        BreakevenError: No row can be learned from.
    """
    rows = [row for row in rows if row.num_devices == 1 and known_device(row.device)]
    if not rows:
        raise BreakevenError("the table has no step on one GPU of the catalogue")
    scales: dict[LeaveOut, dict[str, float]] = {}
    beyond: list[float] = []
    for protocol in (LeaveOut.MODEL, LeaveOut.GPU):
        progress.begin(f"leaving out each {protocol}")
        predictor = HeldOutPredictor(protocol, progress=progress, spread=_NEUTRAL)
        needed = _needed(rows, predictor.predict(rows), protocol)
        scales[protocol] = _scales([one for one in needed if not one.is_early])
        beyond += [one.half_widths / scales[protocol][one.regime] for one in needed if one.is_early]
        progress.end()
    spread = _spread(scales, early_factor=_percentile(beyond) if beyond else 1.0)
    progress.begin("fitting all")
    samples = TracedRows.of(rows, progress=progress).samples(load_efficiencies())
    used = [rows[position] for position in samples]
    effects = fit_step_effects(
        list(samples.values()), provenance=provenance_of(used, command), spread=spread
    )
    progress.end()
    return msgspec.structs.replace(
        effects, calibrated_on=tuple(sorted({fingerprint(row) for row in used}))
    )


def calibrate_on_shared_steps(
    rows: Sequence[MeasuredRow], *, command: str, progress: Progress
) -> MultiGpuTable:
    """Return costs of several GPUs fitted to all steps that were timed on one and on several.

    The steps on one GPU are predicted with the effects that ship: fit those first.

    Args:
        rows: Measured steps; those without a partner on one GPU, and on unknown devices, are
            left out.
        command: What repeats this.
        progress: Progress callback.

    Raises:
        BreakevenError: There are no rows of one of the strategies.
    """
    rows = [row for row in rows if known_device(row.device)]
    progress.begin("setting steps on several GPUs beside those on one")
    steps = TracedRows.of(rows, progress=progress)
    shared = steps.shared_steps(range(len(rows)), shipped_calibration())
    missing = set(Strategy) - {row.setup.strategy for row in shared.values()}
    if missing:
        raise BreakevenError(
            f"the table has no step timed on one and on several GPUs by {min(missing)}",
            hint="the column note names the strategy: DDP, nn.DataParallel",
        )
    progress.begin("fitting all, and all but each device and family")
    used = [rows[position] for position in shared]
    table = fit_multi_gpu(list(shared.values()), provenance_of(used, command))
    progress.end()
    return msgspec.structs.replace(
        table, calibrated_on=tuple(sorted({fingerprint(row) for row in used}))
    )


class _Needed(msgspec.Struct, frozen=True, kw_only=True):
    """How far a row that was left out is off.

    Args:
        regime: What decides that: the host, or a field of `KernelSpread`.
        half_widths: How far, in half widths of its interval.
        is_early: Its software is of 2018 or before.
    """

    regime: str
    half_widths: float
    is_early: bool


def _needed(
    rows: Sequence[MeasuredRow], outcomes: Sequence[RowOutcome], protocol: LeaveOut
) -> list[_Needed]:
    # Of a source that timed one GPU alone, leaving that out leaves out its software and how it
    # measured as well: it does not tell how well one GPU predicts another.
    gpus: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        gpus[row.source].add(gpu_of(find_device(row.device)))
    return [
        _Needed(
            regime=_regime(row, outcome),
            half_widths=_half_widths(row.value_ns, outcome),
            is_early=era_of(row.framework).is_before_torch_1_1,
        )
        for row, outcome in zip(rows, outcomes, strict=True)
        if isinstance(outcome, RowPrediction)
        and (protocol is LeaveOut.MODEL or len(gpus[row.source]) > 1)
    ]


def _scales(needed: Sequence[_Needed]) -> dict[str, float]:
    """Return by how much the uncertainty of each regime must grow."""
    # Few rows have no tail: those of all kernels stand in for them.
    of_kernels = [one.half_widths for one in needed if one.regime != _HOST]
    scales: dict[str, float] = {}
    for name in (*KernelSpread.__struct_fields__, _HOST):
        values = [one.half_widths for one in needed if one.regime == name]
        if name != _HOST and len(values) < _LEAST_ROWS:
            values = of_kernels
        scales[name] = _percentile(values) if values else 1.0
    return scales


def _percentile(values: Sequence[float]) -> float:
    return round(float(np.percentile(values, _COVERAGE_PERCENTILE)), 3)


def _spread(scales: Mapping[LeaveOut, Mapping[str, float]], *, early_factor: float) -> Spread:
    seen, unseen = scales[LeaveOut.MODEL], scales[LeaveOut.GPU]
    names = KernelSpread.__struct_fields__
    return Spread(
        calibrated=KernelSpread(**{name: seen[name] for name in names}),
        unseen=KernelSpread(**{name: unseen[name] for name in names}),
        known_host_log_sigma=round(seen[_HOST] * _NEUTRAL.known_host_log_sigma, 3),
        unknown_host_log_sigma=round(unseen[_HOST] * _NEUTRAL.unknown_host_log_sigma, 3),
        early_factor=early_factor,
    )


def _regime(row: MeasuredRow, outcome: RowPrediction) -> str:
    """Return what decides how far a step is off: the host, or a field of `KernelSpread`."""
    if outcome.bound in _HOST_BOUNDS:
        return _HOST
    if row.precision == NumberFormat.FP64:
        return "fp64"
    return "memory" if outcome.bound is Bound.MEMORY else "compute"


def _half_widths(value_ns: float, outcome: RowPrediction) -> float:
    """Return how far a measured time is off, in half widths of the interval on that side."""
    estimate = outcome.estimate
    end_ns = estimate.high_ns if value_ns > estimate.value_ns else estimate.low_ns
    half_width = abs(np.log(end_ns / estimate.value_ns))
    return float(abs(np.log(value_ns / estimate.value_ns)) / max(half_width, 1e-9))

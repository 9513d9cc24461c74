"""Fit the costs of several devices to steps timed on one device and on several."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from breakeven.calibrate.fit import Quality, rounded
from breakeven.cost import peer_link
from breakeven.device import DeviceSpec, known_device
from breakeven.errors import BreakevenError
from breakeven.progress import Progress
from breakeven.report import Unpredictable
from breakeven.simulate import (
    MULTI_GPU_TABLE_VERSION,
    DataParallelCosts,
    DdpCosts,
    HeldOutFactor,
    ModelSize,
    MultiGpuSetup,
    MultiGpuTable,
    PhaseTimes,
    Strategy,
    lone_step_ns,
    setup_of,
    shared_step_ns,
    shared_times,
)
from breakeven.units import format_percent
from breakeven.validate import MeasuredRow, fingerprint, shipped_calibration
from breakeven.validate.traced_rows import Calibration, Place, Places, TracedRows
from lab.step_parts import provenance_of

_Floats = NDArray[np.float64]
# Accept a lone step with nearly as large a batch, and scale it: large batches are chosen to fill
# the memory, of which several devices have slightly less left.
_BATCH_TOLERANCE = 0.12
_Costs = TypeVar("_Costs", bound=DataParallelCosts | DdpCosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiGpuRow:
    """One step, timed on one device and on several of the same machine.

    Args:
        family: Family of the model: ``resnet``, ``vgg``, ``bert``.
        device: The devices.
        setup: Their number, and how they share the step.
        times: Predicted times of the lone step.
        size: Size of the model.
        dispatch_ns: Predicted time of the host to dispatch an elementwise operator.
        single_ns: Predicted lone step, including the loss where host and device overlap.
        measured_single_ns: Measured lone step.
        measured_ns: Measured shared step.
    """

    family: str
    device: DeviceSpec
    setup: MultiGpuSetup
    times: PhaseTimes
    size: ModelSize
    dispatch_ns: float
    single_ns: float
    measured_single_ns: float
    measured_ns: float

    @property
    def is_launch_bound(self) -> bool:
        """Return whether the host limits the lone step."""
        return self.times.host_ns > self.times.device_ns


def predicted_ns(row: MultiGpuRow, table: MultiGpuTable) -> float:
    """Predict the shared step of ``row``."""
    setup = row.setup
    link = peer_link(
        row.device,
        setup.num_devices,
        has_peer_access=setup.has_peer_access,
        has_bridge=setup.has_bridge,
    )
    shared = shared_times(row.times, row.size, setup, link, row.dispatch_ns, table)
    return shared_step_ns(shared, row.times, row.single_ns)


def factor_log_ratios(rows: Sequence[MultiGpuRow], table: MultiGpuTable) -> _Floats:
    """Return log(predicted / measured) of the factors from one device to several."""
    predicted = np.array([predicted_ns(row, table) / row.single_ns for row in rows])
    measured = np.array([row.measured_ns / row.measured_single_ns for row in rows])
    return np.log(predicted / measured)


def matched_to_single(rows: Sequence[MultiGpuRow]) -> tuple[MultiGpuRow, ...]:
    """Scale the host and device times of rows to match their lone steps.

    The error of a machine's lone prediction is no error of the costs of several devices, so the fit
    must not see it. If the lone step is bound by the device, then the device is scaled to that
    step; otherwise to the machine's device-bound steps. The host is scaled likewise.
    """
    by_machine: dict[tuple[str, bool, bool], list[float]] = defaultdict(list)
    for row in rows:
        by_machine[_machine(row, row.is_launch_bound)].append(
            row.measured_single_ns / row.single_ns
        )
    typical = {key: float(np.exp(np.mean(np.log(values)))) for key, values in by_machine.items()}
    matched: list[MultiGpuRow] = []
    for row in rows:
        own = row.measured_single_ns / row.single_ns
        other = typical.get(_machine(row, not row.is_launch_bound), own)
        host, device = (own, other) if row.is_launch_bound else (other, own)
        matched.append(_scaled(row, host=host, device=device))
    return tuple(matched)


def _machine(row: MultiGpuRow, is_launch_bound: bool) -> tuple[str, bool, bool]:
    return row.device.id, row.size.gradient_bytes > 0, is_launch_bound


def _scaled(row: MultiGpuRow, *, host: float, device: float) -> MultiGpuRow:
    scaled = {
        name: getattr(row.times, name) * factor
        for side, factor in (("host", host), ("device", device))
        for name in (f"{part}_{side}_ns" for part in ("forward", "backward", "other"))
    }
    return replace(
        row,
        times=msgspec.structs.replace(row.times, **scaled),
        dispatch_ns=row.dispatch_ns * host,
        single_ns=row.measured_single_ns,
    )


# Start of the searches; the dispatches are estimated from the slowest steps.
_START = MultiGpuTable(
    version=MULTI_GPU_TABLE_VERSION,
    provenance="",
    data_parallel=DataParallelCosts(
        step_dispatches=400.0,
        replica_dispatches=100.0,
        tensor_dispatches=4.0,
        replica_tensor_dispatches=1.0,
        issue_fraction=0.5,
        slowest_fraction=0.05,
    ),
    ddp=DdpCosts(exposed_fraction=0.5, local_ns_per_byte=0.05),
    held_out=(),
)


def fit_multi_gpu_costs(rows: Sequence[MultiGpuRow]) -> MultiGpuTable:
    """Fit the costs to ``rows``, without their errors.

    A strategy without rows keeps the start values of the search.

    Args:
        rows: Timed steps; a prediction of one of them with the result is not unseen.
    """
    return _fit(matched_to_single(rows))


def fit_multi_gpu(rows: Sequence[MultiGpuRow], provenance: str) -> MultiGpuTable:
    """Fit the costs to ``rows``, with the errors on rows left out.

    Args:
        rows: Timed steps of both strategies.
        provenance: Origin of the rows.
    """
    matched = matched_to_single(rows)
    table = _fit(matched)
    held_out = tuple(
        _held_out(strategy, name, group_of, rows, matched)
        for strategy in Strategy
        for name, group_of in _GROUPS
    )
    return msgspec.structs.replace(
        table,
        provenance=provenance,
        data_parallel=_rounded(table.data_parallel),
        ddp=_rounded(table.ddp),
        held_out=held_out,
    )


_GROUPS: tuple[tuple[str, Callable[[MultiGpuRow], str]], ...] = (
    ("family", lambda row: row.family),
    ("device", lambda row: row.device.id),
)


def _held_out(
    strategy: Strategy,
    name: str,
    group_of: Callable[[MultiGpuRow], str],
    rows: Sequence[MultiGpuRow],
    matched: Sequence[MultiGpuRow],
) -> HeldOutFactor:
    groups: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row.setup.strategy is strategy:
            groups[group_of(row)].append(index)
    ratios: list[float] = []
    for left_out, members in groups.items():
        others = [
            matched[index]
            for group, indices in groups.items()
            if group != left_out
            for index in indices
        ]
        ratios += factor_log_ratios([rows[index] for index in members], _fit(others)).tolist()
    quality = Quality.of(np.array(ratios))
    return HeldOutFactor(
        strategy=strategy,
        left_out=name,
        num_groups=len(groups),
        num_rows=len(ratios),
        median_error_fraction=rounded(quality.median_error_fraction),
        p90_error_fraction=rounded(quality.p90_error_fraction),
        log_sigma=rounded(quality.log_sigma),
    )


def _fit(rows: Sequence[MultiGpuRow]) -> MultiGpuTable:
    """Return the table that fits ``rows`` best; a strategy without rows keeps its start."""
    table = _START
    for strategy, name, start in (
        (Strategy.DATA_PARALLEL, "data_parallel", _START.data_parallel),
        (Strategy.DDP, "ddp", _START.ddp),
    ):
        own = [row for row in rows if row.setup.strategy is strategy]
        if own:
            table = _fitted(own, table, name, start)
    return table


def _values(costs: DataParallelCosts | DdpCosts) -> _Floats:
    return np.array([getattr(costs, name) for name in costs.__struct_fields__])


def _struct(kind: type[_Costs], values: _Floats) -> _Costs:
    return kind(**dict(zip(kind.__struct_fields__, values.tolist(), strict=True)))


def _rounded(costs: _Costs) -> _Costs:
    return _struct(type(costs), np.array([rounded(value) for value in _values(costs)]))


# Larger errors count linearly, so that a machine with a broken link has little effect.
_HUBER = 0.1
_MAX_ROUNDS = 40
_SETTLED = 1e-5
# Step of the numerical derivative, relative to the start of the search.
_STEP = 1e-3
# With more damping, a round changes nothing significant.
_MAX_DAMPING = 1e6


def _fitted(
    rows: Sequence[MultiGpuRow],
    table: MultiGpuTable,
    name: str,
    start: DataParallelCosts | DdpCosts,
) -> MultiGpuTable:
    """Return the table with the costs of least Huber loss (Levenberg-Marquardt search).

    Costs vary in multiples of the start values, and are never negative.
    """
    measured = np.log([row.measured_ns for row in rows])
    start_values = _values(start)

    def table_of(multiples: _Floats) -> MultiGpuTable:
        costs = _struct(type(start), multiples * start_values)
        return msgspec.structs.replace(table, **{name: costs})

    def errors_of(multiples: _Floats) -> _Floats:
        own = table_of(multiples)
        return np.log([predicted_ns(row, own) for row in rows]) - measured

    best, damping = np.ones(len(start_values)), 1e-2
    errors = errors_of(best)
    for _ in range(_MAX_ROUNDS):
        slopes = np.column_stack(
            [(errors_of(best + step) - errors) / _STEP for step in _STEP * np.eye(len(best))]
        )
        weights = _HUBER / np.maximum(np.abs(errors), _HUBER)
        normal = slopes.T @ (slopes * weights[:, None])
        normal += damping * np.diag(np.diag(normal) + 1e-9 * len(rows))
        trial = np.maximum(best - np.linalg.solve(normal, slopes.T @ (weights * errors)), 0.0)
        trial_errors = errors_of(trial)
        gain = _loss(errors) - _loss(trial_errors)
        if gain <= 0:
            damping *= 10
            if damping > _MAX_DAMPING:
                break
            continue
        best, errors, damping = trial, trial_errors, max(damping / 10, 1e-6)
        if gain < _SETTLED * _loss(errors):
            break
    return table_of(best)


def _loss(errors: _Floats) -> float:
    size = np.abs(errors)
    return float(np.mean(np.where(size < _HUBER, size**2 / 2, _HUBER * (size - _HUBER / 2))))


def shared_steps(
    steps: TracedRows, positions: Sequence[int], calibration: Calibration
) -> dict[int, MultiGpuRow]:
    """Return the steps on several GPUs that a calibration can learn from, by position.

    Args:
        steps: Rows with their steps.
        positions: Rows to use; only these are searched for the matching steps on one GPU.
        calibration: Predicts the steps on one GPU.
    """
    lone_ns = lone_steps_ns([steps.rows[position] for position in positions])
    places = Places(calibration)
    times: dict[tuple[int, Place], PhaseTimes] = {}
    found: dict[int, MultiGpuRow] = {}
    for index, measured_single_ns in lone_ns.items():
        position = positions[index]
        row, step = steps.rows[position], steps.steps[position]
        if isinstance(step, Unpredictable):
            continue
        place, model = places.of(row), steps.model(step)
        if (id(step), place) not in times:
            times[id(step), place] = model.times(place)
        phases = times[id(step), place]
        setup, _ = setup_of(row.note, row.num_devices)
        found[position] = MultiGpuRow(
            family=_family(row.workload),
            device=place.device,
            setup=setup,
            times=phases,
            size=model.size,
            dispatch_ns=place.costs.dispatch_ns(place.host),
            single_ns=lone_step_ns(phases, overlap_loss_fraction=place.costs.overlap_loss_fraction),
            measured_single_ns=measured_single_ns,
            measured_ns=row.value_ns,
        )
    return found


def lone_steps_ns(timings: Sequence[MeasuredRow]) -> dict[int, float]:
    """Return the time on one device for each timing of several devices, by position.

    Timings without such a partner in ``timings`` are left out.
    """
    alone: defaultdict[tuple[str, ...], list[MeasuredRow]] = defaultdict(list)
    for timing in timings:
        if timing.num_devices == 1:
            alone[_lone_key(timing)].append(timing)
    return {
        position: lone_ns
        for position, timing in enumerate(timings)
        if timing.num_devices > 1
        and (lone_ns := _lone_ns(timing, alone[_lone_key(timing)])) is not None
    }


def _lone_key(timing: MeasuredRow) -> tuple[str, ...]:
    case = timing.case
    return (
        timing.source,
        case.workload,
        case.phase,
        case.number_format,
        case.optimizer,
        case.h2d,
        timing.device,
        timing.framework,
    )


def _lone_ns(timing: MeasuredRow, alone: Sequence[MeasuredRow]) -> float | None:
    """Return the lone step that matches ``timing``, on the same host if there is one."""
    near = [
        other for other in alone if abs(other.batch_size / timing.batch_size - 1) < _BATCH_TOLERANCE
    ]
    same = [other for other in near if other.host == timing.host] or near
    if not same:
        return None
    return median(other.value_ns * timing.batch_size / other.batch_size for other in same)


def _family(workload: str) -> str:
    """Return the family of a model: the first word of its name, without ``wide_``."""
    name = workload.partition(":")[2].removeprefix("wide_")
    found = re.match(r"[A-Z]?[a-z]+", name)
    return found.group().casefold() if found else name


def calibrate_on_shared_steps(
    rows: Sequence[MeasuredRow], *, command: str, progress: Progress
) -> MultiGpuTable:
    """Fit the costs of several GPUs to all steps timed on one and on several.

    Shipped effects predict the steps on one GPU: fit those first.

    Args:
        rows: Measured steps. Those without a partner on one GPU, or on unknown devices, are left
            out.
        command: The command that repeats the fit.
        progress: Progress callback.

    Raises:
        BreakevenError: If a strategy has no rows.
    """
    rows = [row for row in rows if known_device(row.device)]
    progress.begin("setting steps on several GPUs beside those on one")
    steps = TracedRows.of(rows, progress=progress)
    shared = shared_steps(steps, range(len(rows)), shipped_calibration())
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


def describe_multi_gpu(table: MultiGpuTable) -> str:
    """Describe the fit as text: the costs, and the errors on rows left out."""
    lines = [f"{len(table.calibrated_on)} steps on several GPUs"]
    for title, costs in (("nn.DataParallel", table.data_parallel), ("DDP", table.ddp)):
        lines.append(title)
        lines += [f"  {name}: {value:.4g}" for name, value in msgspec.structs.asdict(costs).items()]
    lines.append("left out                 median    P90  sigma  rows")
    lines += [
        f"{error.strategy + ', ' + error.left_out:23} "
        f"{format_percent(error.median_error_fraction):>7} "
        f"{format_percent(error.p90_error_fraction):>6} {error.log_sigma:6.2f} {error.num_rows:5}"
        for error in table.held_out
    ]
    return "\n".join(lines) + "\n"

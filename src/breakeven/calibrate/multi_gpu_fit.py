"""Costs of several devices, fitted to steps that were timed on one device and on several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from breakeven.calibrate.fit import Quality, rounded
from breakeven.cost import peer_link
from breakeven.device import DeviceSpec
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
    shared_step_ns,
    shared_times,
)

_Floats = NDArray[np.float64]
_Costs = TypeVar("_Costs", bound=DataParallelCosts | DdpCosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiGpuRow:
    """One step, timed on one device and on several of the same machine.

    Args:
        family: Family of the model: ``resnet``, ``vgg``, ``bert``.
        device: The devices.
        setup: How many, and how they share the step.
        times: The lone step, predicted.
        size: The model.
        dispatch_ns: The host's time to dispatch an elementwise operator, predicted.
        single_ns: The lone step, predicted with what it loses where host and device overlap.
        measured_single_ns: The lone step, measured.
        measured_ns: The shared step, measured.
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
    """Return the shared step of ``row``."""
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
    """Return the rows with host and device as fast as their lone steps say they are.

    What a machine's host and device deviate from the prediction is no error of what several
    devices add, so the fit does not see it: the device is as fast as the lone step where that is
    bound by it, and as the machine's others are where it is not; the host the other way round.
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


# Where the searches start: dispatches of the size that a look at the slowest steps suggests.
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
    """Return the costs that ``rows`` tell of, without errors.

    A strategy without rows keeps the costs with which the search starts.

    Args:
        rows: Timed steps; none of them may be predicted with the result and called unseen.
    """
    return _fit(matched_to_single(rows))


def fit_multi_gpu(rows: Sequence[MultiGpuRow], provenance: str) -> MultiGpuTable:
    """Return the costs that ``rows`` tell of, and their errors on rows left out.

    Args:
        rows: Timed steps of both strategies.
        provenance: Where the rows are from.
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


# Errors beyond this count linearly, so that a machine with a broken link says little.
_HUBER = 0.1
_MAX_ROUNDS = 40
_SETTLED = 1e-5
# Step of the numerical derivative, relative to where the search starts.
_STEP = 1e-3
# With more damping, a round changes nothing that matters.
_MAX_DAMPING = 1e6


def _fitted(
    rows: Sequence[MultiGpuRow],
    table: MultiGpuTable,
    name: str,
    start: DataParallelCosts | DdpCosts,
) -> MultiGpuTable:
    """Return the table with the costs of least Huber loss (Levenberg and Marquardt's search).

    Costs are varied in multiples of where the search starts, and never negative.
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

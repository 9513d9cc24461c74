"""A whole table: read, predicted, compared."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from breakeven.cost import era_of
from breakeven.device import DeviceSpec, HostCpu, find_device, find_host_cpu
from breakeven.errors import BreakevenError, UnknownDeviceError
from breakeven.progress import Progress, SilentProgress
from breakeven.validate.cpu_rows import MeasuredCpus
from breakeven.validate.summary import split_of, summarize_groups
from breakeven.validate.table import MeasuredRow, RowFilter, read_what_is_readable
from breakeven.validate.traced_rows import Predictor, model_family_of
from breakeven.verdict import AccuracyReport, LeaveOut, RowPrediction, RowResult, Unpredictable

_CPU_SHIPPED = "a step on a CPU is predicted from its time on this one: --measure-cpus takes that"
_CPU_LEFT_OUT = (
    "steps on CPUs are predicted by the calibration that ships alone, without --leave-out"
)


def validate_table(
    *paths: str | os.PathLike[str],
    predictor: Predictor,
    protocol: LeaveOut = LeaveOut.NONE,
    cpus: MeasuredCpus | None = None,
    only: RowFilter | None = None,
    progress: Progress | None = None,
) -> AccuracyReport:
    """Return the prediction of every row of a table beside what was measured.

    Args:
        paths: The files of the table.
        predictor: What predicts, from a calibration that keeps to ``protocol``.
        protocol: What that calibration has not seen.
        cpus: What predicts rows of CPUs; they are listed with a reason by default.
        only: Which rows count; all by default.
        progress: Progress callback.

    Raises:
        BreakevenError: The table cannot be read, or ``only`` leaves no row.
    """
    progress = SilentProgress() if progress is None else progress
    table = ", ".join(str(os.fspath(path)) for path in paths)
    progress.begin(f"reading {table}")
    rows, unread = read_what_is_readable(*paths)
    selected = rows if only is None else only.select(rows)
    selected_ids = {row.case_id for row in selected}
    # A fold learns from the rows that are not selected too.
    training = [row for row in rows if row.case_id not in selected_ids]
    progress.begin(f"predicting {len(selected):,} rows")
    results = compare(
        selected,
        predictor=predictor,
        protocol=protocol,
        cpus=cpus,
        training=training,
    )
    progress.end()
    return AccuracyReport(
        table=table,
        protocol=protocol,
        rows=results,
        summary=summarize_groups(results),
        unread=unread,
    )


def compare(
    rows: Sequence[MeasuredRow],
    *,
    predictor: Predictor,
    protocol: LeaveOut = LeaveOut.NONE,
    cpus: MeasuredCpus | None = None,
    training: Sequence[MeasuredRow] = (),
) -> tuple[RowResult, ...]:
    """Return each row with its prediction, or with the reason why it has none.

    Args:
        rows: Rows to predict.
        predictor: What predicts them.
        protocol: What its calibration has not seen.
        cpus: What predicts rows of CPUs; they are listed with a reason by default.
        training: Further rows that it may learn from.

    Raises:
        BreakevenError: The predictor gave another number of outcomes than it was given rows, or
            one that is no time.
    """
    devices = {name: _device(name) for name in {row.device for row in (*rows, *training)}}
    known = [row for row in rows if isinstance(devices[row.device], DeviceSpec)]
    training_rows = [row for row in training if isinstance(devices[row.device], DeviceSpec)]
    outcomes = tuple(predictor.predict(known, training=training_rows)) if known else ()
    if len(outcomes) != len(known):
        raise BreakevenError(f"{len(outcomes)} predictions for {len(known)} rows")
    outcome_by_case_id = {
        row.case_id: outcome for row, outcome in zip(known, outcomes, strict=True)
    }
    on_cpus = [(row, device) for row in rows if isinstance(device := devices[row.device], HostCpu)]
    if cpus is None or not on_cpus:
        reason = _CPU_SHIPPED if protocol is LeaveOut.NONE else _CPU_LEFT_OUT
        of_cpus = [Unpredictable(code="cpu", reason=reason)] * len(on_cpus)
    else:
        of_cpus = cpus.predict([row for row, _ in on_cpus], [cpu for _, cpu in on_cpus])
    outcome_by_case_id |= {
        row.case_id: outcome for (row, _), outcome in zip(on_cpus, of_cpus, strict=True)
    }
    results: list[RowResult] = []
    for row in rows:
        device = devices[row.device]
        outcome = device if isinstance(device, Unpredictable) else outcome_by_case_id[row.case_id]
        results.append(_result(row, device, _checked(row, outcome), protocol))
    return tuple(results)


def _device(name: str) -> DeviceSpec | HostCpu | Unpredictable:
    try:
        return find_device(name)
    except UnknownDeviceError as error:
        with suppress(BreakevenError):
            return find_host_cpu(name)
        return Unpredictable(code="unknown-device", reason=error.message)


def _checked(
    row: MeasuredRow, outcome: RowPrediction | Unpredictable
) -> RowPrediction | Unpredictable:
    if isinstance(outcome, RowPrediction):
        estimate = outcome.estimate
        if not 0 < estimate.low_ns <= estimate.value_ns <= estimate.high_ns < float("inf"):
            raise BreakevenError(
                f"row {row.case_id}: a prediction of {estimate.value_ns} ns with the interval "
                f"{estimate.low_ns} to {estimate.high_ns} ns"
            )
    return outcome


def _result(
    row: MeasuredRow,
    device: DeviceSpec | HostCpu | Unpredictable,
    outcome: RowPrediction | Unpredictable,
    protocol: LeaveOut,
) -> RowResult:
    name, architecture = row.device, ""
    if isinstance(device, DeviceSpec):
        name, architecture = device.name, device.architecture
    elif isinstance(device, HostCpu):
        name, architecture = device.name, device.core
    is_calibrated_on = isinstance(outcome, RowPrediction) and outcome.is_calibrated_on
    return RowResult(
        case_id=row.case_id,
        source=row.source,
        workload=row.workload,
        device=name,
        architecture=architecture,
        num_devices=row.num_devices,
        precision=row.precision,
        batch_size=row.batch_size,
        phase=row.phase,
        optimizer=row.optimizer,
        h2d=row.h2d.value,
        host=row.host,
        framework=row.framework,
        era=str(era_of(row.framework)),
        split=split_of(row.split, protocol, is_calibrated_on=is_calibrated_on),
        value_ns=row.value_ns,
        outcome=outcome,
        memory_format=row.memory_format,
        compile=row.compile,
        attention=row.attention,
        family=model_family_of(row.workload),
    )

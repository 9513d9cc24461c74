"""Predict rows of a table by calibrations without their GPU, family or source."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from breakeven.calibrate.step_fit import StepSample, fit_step_effects
from breakeven.cost import (
    STEP_EFFECTS_VERSION,
    DeviceEfficiency,
    EfficiencyTable,
    Spread,
    StepEffects,
    load_efficiencies,
    load_step_effects,
)
from breakeven.device import DeviceSpec, find_device
from breakeven.progress import Progress
from breakeven.report import LeaveOut, Unpredictable
from breakeven.simulate import load_multi_gpu_table, setup_of
from breakeven.validate import MeasuredRow, model_family_of
from breakeven.validate.traced_rows import Calibration, RowOutcome, TracedRows
from lab.multi_gpu import MultiGpuRow, fit_multi_gpu_costs, shared_steps
from lab.step_parts import RowParts


class HeldOutPredictor:
    """Predicts each fold by a calibration fitted to the other rows of the table.

    If a GPU or a source is left out, then its benchmarks of operators are left out too, even if
    other GPUs' efficiencies depend on them. The widths of intervals are not fitted again.

    Args:
        protocol: Rows to leave out together.
        progress: Progress callback.
        spread: Residual uncertainty; the shipped one by default.
    """

    def __init__(
        self, protocol: LeaveOut, *, progress: Progress, spread: Spread | None = None
    ) -> None:
        self._protocol = protocol
        self._progress = progress
        self._spread = spread

    def predict(
        self, rows: Sequence[MeasuredRow], *, training: Sequence[MeasuredRow] = ()
    ) -> Sequence[RowOutcome]:
        """Return one outcome per row, learned from the other rows and from ``training``."""
        steps = TracedRows.of((*rows, *training), progress=self._progress)
        outcomes: dict[int, RowOutcome] = {}
        for calibration, others, left_out in self.calibrations(steps, num_predicted=len(rows)):
            outcomes |= _predicted(calibration, steps, others, left_out)
        return tuple(outcomes[position] for position in range(len(rows)))

    def calibrations(
        self, steps: TracedRows, *, num_predicted: int
    ) -> Iterator[tuple[Calibration, Sequence[int], Sequence[int]]]:
        """Yield a calibration for each fold, the rows that it knows, and those to predict.

        Args:
            steps: The rows.
            num_predicted: The first rows, which are predicted; the others only teach.
        """
        parts = RowParts(steps)
        spread = self._spread or load_step_effects().spread
        table = load_efficiencies()
        samples = parts.samples(table)
        for name, (others, left_out) in folds(steps.rows, self._protocol).items():
            members = [position for position in left_out if position < num_predicted]
            if not members:
                continue
            self._progress.detail(f"without {name}")
            known = _without(table, name, self._protocol)
            calibration = Calibration(
                efficiencies=known,
                effects=_effects(
                    samples if known == table else parts.samples(known, others),
                    others,
                    provenance=f"all rows but those of {name}",
                    spread=spread,
                ),
                multi_gpu=load_multi_gpu_table(),
            )
            yield calibration, others, members


def _without(table: EfficiencyTable, name: str, protocol: LeaveOut) -> EfficiencyTable:
    """Return the table without the benchmarks of operators that belong to a fold."""

    def is_left_out(entry: DeviceEfficiency) -> bool:
        if protocol is LeaveOut.GPU:
            return gpu_of(find_device(entry.device)) == name
        return protocol is LeaveOut.SOURCE and f"{name} " in entry.source

    devices = tuple(entry for entry in table.devices if not is_left_out(entry))
    return table if devices == table.devices else msgspec.structs.replace(table, devices=devices)


def _effects(
    samples: Mapping[int, StepSample], others: Sequence[int], *, provenance: str, spread: Spread
) -> StepEffects:
    known = [samples[position] for position in others if position in samples]
    if not known:
        return StepEffects(
            version=STEP_EFFECTS_VERSION, provenance=provenance, spread=spread, effects=()
        )
    return fit_step_effects(known, provenance=provenance, spread=spread)


def _predicted(
    calibration: Calibration, steps: TracedRows, others: Sequence[int], members: Sequence[int]
) -> dict[int, RowOutcome]:
    """Return the outcomes of ``members``; learn the costs of several GPUs from ``others``."""
    strategies = {
        position: setup_of(row.note, row.num_devices)[0].strategy
        for position in members
        if (row := steps.rows[position]).num_devices > 1
    }
    unfitted: dict[int, RowOutcome] = {}
    if strategies:
        shared = list(shared_steps(steps, others, calibration).values())
        trained = {row.setup.strategy for row in shared}
        unfitted = {
            position: Unpredictable(
                code="not-calibrated",
                reason=f"no row of the others was timed on one and on several GPUs by {strategy}",
            )
            for position, strategy in strategies.items()
            if strategy not in trained
        }
        calibration = _with_shared_steps(calibration, shared)
    predicted = [position for position in members if position not in unfitted]
    return unfitted | dict(zip(predicted, steps.predict(predicted, calibration), strict=True))


def _with_shared_steps(calibration: Calibration, shared: Sequence[MultiGpuRow]) -> Calibration:
    fitted = msgspec.structs.replace(
        fit_multi_gpu_costs(shared),
        provenance=calibration.effects.provenance,
        held_out=calibration.multi_gpu.held_out,
    )
    return replace(calibration, multi_gpu=fitted)


# Boards of one GPU that differ in memory size, form factor or cooling count as one GPU, since each
# would reveal the others' times.
_BOARD_WORDS = re.compile(
    r"\b(?:\d+\s*gb|sxm\d?|pcie|nvl|max-q|laptop)\b|\(dgx[^)]*\)", re.IGNORECASE
)


def gpu_of(device: DeviceSpec) -> str:
    """Return the GPU of a board: ``A100`` for all A100."""
    return " ".join(_BOARD_WORDS.sub(" ", device.name).split())


def fold_names(rows: Sequence[MeasuredRow], protocol: LeaveOut) -> tuple[str, ...]:
    """Return the fold of each row; the rows of a fold are left out together.

    Raises:
        ValueError: If the protocol leaves nothing out.
    """
    if protocol is LeaveOut.GPU:
        return tuple(gpu_of(find_device(row.device)) for row in rows)
    if protocol is LeaveOut.MODEL:
        return tuple(model_family_of(row.workload) for row in rows)
    if protocol is LeaveOut.SOURCE:
        return tuple(row.source or "not given" for row in rows)
    raise ValueError(f"{protocol} has no folds")


def folds(
    rows: Sequence[MeasuredRow], protocol: LeaveOut
) -> Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return, by fold, the rows that a calibration may learn from, and the rows to predict.

    Both are positions in ``rows``. No position is in both, and neither is any GPU or model family
    of the fold.
    """
    names = fold_names(rows, protocol)
    members: defaultdict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(names):
        members[name].append(position)
    return {
        name: (
            tuple(p for p, other in enumerate(names) if other != name),
            tuple(positions),
        )
        for name, positions in sorted(members.items())
    }

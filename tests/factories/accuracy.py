"""Tables and validations with figures computed by hand."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from breakeven.report import AccuracyReport, LeaveOut, RowPrediction, Unpredictable
from breakeven.timing import Estimate, Source
from breakeven.units import NS_PER_MS
from breakeven.validate import MeasuredRow, read_table
from breakeven.validate.comparison import compare, summarize_groups
from breakeven.verdict import Bound

DEFAULTS = {
    "source": "lab",
    "workload": "torchvision:resnet50",
    "device": "T4",
    "num_devices": "1",
    "precision": "fp32",
    "batch_size": "32",
    "phase": "train",
    "optimizer": "sgd",
    "h2d": "pinned",
    "host": "Xeon",
    "framework": "torch 2.3",
    "value_ms": "100",
    "repeats": "1",
    "split": "",
    "note": "",
}

COLUMNS = ("case_id", *DEFAULTS)


def table_text(
    *rows: Mapping[str, str], columns: Sequence[str] = COLUMNS, line_end: str = "\n"
) -> str:
    """Return a table of ``DEFAULTS`` updated by each row, with the case names a, b, c, ..."""
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator=line_end)
    writer.writeheader()
    for index, row in enumerate(rows):
        writer.writerow({"case_id": "abcdefghijklmnopqrstuvwxyz"[index], **DEFAULTS, **row})
    return file.getvalue()


def write_table(path: Path, *rows: Mapping[str, str]) -> Path:
    """Write a table with the usual columns and the rows' additional ones."""
    columns = dict.fromkeys([*COLUMNS, *(key for row in rows for key in row)])
    path.write_text(table_text(*rows, columns=list(columns)), "utf-8")
    return path


def prediction(
    value_ms: float,
    *,
    low_ms: float | None = None,
    high_ms: float | None = None,
    bound: Bound | None = Bound.COMPUTE,
    is_calibrated_on: bool = False,
) -> RowPrediction:
    """Return a prediction, by default with an interval from half to twice its value."""
    return RowPrediction(
        estimate=Estimate(
            value_ns=value_ms * NS_PER_MS,
            low_ns=(value_ms / 2 if low_ms is None else low_ms) * NS_PER_MS,
            high_ns=(value_ms * 2 if high_ms is None else high_ms) * NS_PER_MS,
            source=Source.PREDICTED,
        ),
        bound=bound,
        is_calibrated_on=is_calibrated_on,
    )


@dataclass
class FakePredictor:
    """Predicts the measured value times a factor, or a case's given result; records its calls."""

    factor: float = 1.0
    by_case_id: Mapping[str, RowPrediction | Unpredictable] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    taught: list[tuple[str, ...]] = field(default_factory=list)

    def predict(
        self, rows: Sequence[MeasuredRow], *, training: Sequence[MeasuredRow] = ()
    ) -> list[RowPrediction | Unpredictable]:
        self.calls.append(tuple(row.case_id for row in rows))
        self.taught.append(tuple(row.case_id for row in training))
        return [
            self.by_case_id.get(row.case_id, prediction(self.factor * row.value_ns / NS_PER_MS))
            for row in rows
        ]


def report_of(
    path: Path,
    rows: Sequence[Mapping[str, str]],
    outcomes: Mapping[str, RowPrediction | Unpredictable],
    *,
    protocol: LeaveOut = LeaveOut.GPU,
) -> AccuracyReport:
    """Return the validation of a table written to ``path``, under the name steps.csv."""
    results = compare(
        read_table(write_table(path, *rows)),
        predictor=FakePredictor(by_case_id=outcomes),
        protocol=protocol,
    )
    return AccuracyReport(
        table="steps.csv", protocol=protocol, rows=results, summary=summarize_groups(results)
    )


def mixed(path: Path, protocol: LeaveOut = LeaveOut.GPU) -> AccuracyReport:
    """Return twelve rows of two sources, two precisions and two eras; two are not predicted."""
    rows: list[dict[str, str]] = [
        {"value_ms": "100"},
        {"value_ms": "80", "device": "P100"},
        {"value_ms": "50", "device": "V100", "precision": "fp16"},
        {"value_ms": "10", "device": "A100", "precision": "fp16"},
        {"value_ms": "12", "device": "T4", "precision": "fp16"},
        {"value_ms": "200", "device": "P4"},
        {"value_ms": "400", "framework": "torch7", "source": "old lab", "device": "GTX 1080"},
        {"value_ms": "300", "framework": "torch7", "source": "old lab", "device": "RTX 2080 Ti"},
        {"value_ms": "7.5", "phase": "inference", "optimizer": "none"},
        {"value_ms": "2100", "device": "CPU 2x Xeon E5-2630 v3", "batch_size": "16"},
        {"value_ms": "30", "num_devices": "8", "workload": "breakeven:disc-mlp?depth=8"},
        {"value_ms": "33", "batch_size": "1024", "workload": "transformers:Bert?seq=384"},
    ]
    outcomes: dict[str, RowPrediction | Unpredictable] = {
        "a": prediction(110),
        "b": prediction(60),
        "c": prediction(55),
        "d": prediction(9, bound=Bound.LAUNCH),
        "e": prediction(14, bound=Bound.LAUNCH),
        "f": prediction(150),
        "g": prediction(150, bound=Bound.MEMORY),
        "h": prediction(290, bound=Bound.MEMORY),
        "i": prediction(15.9, bound=Bound.LAUNCH),
        "k": Unpredictable(code="many-devices", reason="a step on 8 devices is not predicted"),
        "l": prediction(33, bound=None),
    }
    return report_of(path, rows, outcomes, protocol=protocol)

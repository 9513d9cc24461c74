"""The kinds of documents that commands print, one entry each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from breakeven.money import PRICES_VERSION, PriceFile
from breakeven.report.accuracy import AccuracyReport
from breakeven.report.calibrate import CALIBRATION_SCHEMA_VERSION, CalibrationDocument
from breakeven.report.check import check_document
from breakeven.report.check_report import SCHEMA_VERSION, CheckReport
from breakeven.report.compare import comparison_document
from breakeven.report.comparison_report import COMPARISON_SCHEMA_VERSION, ComparisonReport
from breakeven.report.cost import cost_document
from breakeven.report.cost_report import COST_SCHEMA_VERSION, CostReport
from breakeven.report.devices import (
    DEVICES_SCHEMA_VERSION,
    HOSTS_SCHEMA_VERSION,
    DevicesDocument,
    HostsDocument,
)
from breakeven.report.document import Document
from breakeven.report.explain import explain_document
from breakeven.report.explain_report import EXPLAIN_SCHEMA_VERSION, ExplainReport
from breakeven.report.normal import normal_document
from breakeven.report.normal_report import NORMAL_SCHEMA_VERSION, NormalReport
from breakeven.report.rules import RULES_SCHEMA_VERSION, RulesDocument
from breakeven.report.sweep import sweep_document
from breakeven.report.system_report import SYSTEMS_SCHEMA_VERSION, SystemsReport
from breakeven.report.tune import tune_document
from breakeven.report.validate import (
    VALIDATION_SCHEMA_VERSION,
    ValidationDocument,
    accuracy_document,
    stored_validation,
)
from breakeven.report.workloads import system_documents
from breakeven.verdict import SWEEP_SCHEMA_VERSION, TUNE_SCHEMA_VERSION, SweepReport, TuneReport


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of document. All of its schema versions so far can be read.

    Args:
        schema: Name of its schema, and of the command that prints it with ``--json``.
        type: Type of the report.
        version: Version of its schema.
        units: Units and meaning of its figures.
        build: Builds the document that shows a report.
        parts: Builds the documents that a terminal shows in turn.
        key: A key that identifies it in a stored file: no later kind in `KINDS` has it; empty if it
            is not read back.
        rerun: Arguments of ``breakeven`` that write the file again.
        command: The command, if it differs from the schema's name.
        stored: Its type in JSON, if different from the report's.
        write: Converts a report to the stored type.
    """

    schema: str
    type: type[msgspec.Struct]
    version: int
    units: str
    build: Callable[..., Document] | None = None
    parts: Callable[[Any], Iterable[Document]] | None = None
    key: str = ""
    rerun: str = ""
    command: str = ""
    stored: type[msgspec.Struct] = None  # type: ignore[assignment]
    write: Callable[[Any], Any] = lambda report: report

    def __post_init__(self) -> None:
        defaults = {
            "command": self.schema,
            "rerun": f"{self.schema} TARGET -o FILE --force",
            "stored": self.type,
        }
        for name, value in defaults.items():
            object.__setattr__(self, name, getattr(self, name) or value)

    @property
    def description(self) -> str:
        """The command that prints it, and the units of its figures."""
        return f"What `breakeven {self.command} --json` prints{self.units}"


_FRACTIONS = "shares between 0 and 1; low and high bound a 90 % interval."
_OF_A_STEP = f". Times are in nanoseconds, sizes in bytes, {_FRACTIONS}"

KINDS = (
    # Must precede check: an explanation has a verdict too.
    Kind(
        "explain",
        ExplainReport,
        EXPLAIN_SCHEMA_VERSION,
        _OF_A_STEP,
        explain_document,
        key="attribution",
    ),
    Kind("check", CheckReport, SCHEMA_VERSION, _OF_A_STEP, check_document, key="verdict"),
    Kind(
        "sweep",
        SweepReport,
        SWEEP_SCHEMA_VERSION,
        ". Times are in nanoseconds; low and high bound a 90 % interval.",
        sweep_document,
        key="axes",
    ),
    Kind("normal", NormalReport, NORMAL_SCHEMA_VERSION, _OF_A_STEP, normal_document, key="speeds"),
    Kind(
        "workloads",
        SystemsReport,
        SYSTEMS_SCHEMA_VERSION,
        f"{_OF_A_STEP} The unit of a table's column is its kind; an estimate has the unit of its "
        "column, whatever its keys are called.",
        parts=system_documents,
        key="systems",
        rerun="workloads NAME -o FILE --force",
    ),
    Kind(
        "tune",
        TuneReport,
        TUNE_SCHEMA_VERSION,
        ". Times are in nanoseconds; low and high bound a 95 % interval of the ratio of two step "
        "times.",
        tune_document,
        key="trials",
        rerun="tune TARGET --json > FILE",
    ),
    Kind(
        "cost",
        CostReport,
        COST_SCHEMA_VERSION,
        ". Times are in nanoseconds unless the key ends in another unit; low and high bound a 90 % "
        "interval.",
        cost_document,
        key="setup_s",
    ),
    Kind(
        "compare",
        ComparisonReport,
        COMPARISON_SCHEMA_VERSION,
        ". Times are in nanoseconds, ratios are those of the second run to the first; low and high "
        "bound a 90 % interval.",
        comparison_document,
    ),
    Kind(
        "validate",
        AccuracyReport,
        VALIDATION_SCHEMA_VERSION,
        ". Times are in milliseconds, as in tables, errors and shares are fractions; low and high "
        "bound a 90 % interval.",
        accuracy_document,
        stored=ValidationDocument,
        write=stored_validation,
    ),
    Kind(
        "calibrate",
        CalibrationDocument,
        CALIBRATION_SCHEMA_VERSION,
        ". Times are in nanoseconds per call.",
    ),
    Kind(
        "devices",
        DevicesDocument,
        DEVICES_SCHEMA_VERSION,
        ". Sizes are in bytes, rates per second.",
    ),
    Kind(
        "hosts",
        HostsDocument,
        HOSTS_SCHEMA_VERSION,
        ". Clocks are in hertz.",
        command="devices --hosts",
    ),
    Kind(
        "prices",
        PriceFile,
        PRICES_VERSION,
        ". Prices are in US dollars, sizes in bytes, billed times in seconds.",
    ),
    Kind("rules", RulesDocument, RULES_SCHEMA_VERSION, "; texts are in Markdown."),
)


def kind_of(report: msgspec.Struct) -> Kind:
    """Return the kind of a report."""
    return next(kind for kind in KINDS if kind.type is type(report))


def kinds_by_schema() -> Mapping[str, Kind]:
    """Return the kinds by the name of their schema, in alphabetical order."""
    return {kind.schema: kind for kind in sorted(KINDS, key=lambda kind: kind.schema)}

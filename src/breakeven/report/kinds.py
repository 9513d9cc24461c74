"""The kinds of documents that commands print, one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from breakeven.report.device_sheet import DEVICES_SCHEMA_VERSION, DevicesDocument
from breakeven.report.host_sheet import (
    CALIBRATION_SCHEMA_VERSION,
    HOSTS_SCHEMA_VERSION,
    CalibrationDocument,
    HostsDocument,
)
from breakeven.report.rule_sheet import RULES_SCHEMA_VERSION, RulesDocument
from breakeven.report.validation_document import (
    VALIDATION_SCHEMA_VERSION,
    ValidationDocument,
    accuracy_report,
    validation_document,
)
from breakeven.verdict import (
    COMPARISON_SCHEMA_VERSION,
    EXPLAIN_SCHEMA_VERSION,
    SCHEMA_VERSION,
    SWEEP_SCHEMA_VERSION,
    SYSTEMS_SCHEMA_VERSION,
    TUNE_SCHEMA_VERSION,
    AccuracyReport,
    CheckReport,
    ComparisonReport,
    ExplainReport,
    SweepReport,
    SystemsReport,
    TuneReport,
)


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of document. All of its schema versions so far are read: each has only added.

    Args:
        command: Prints it with ``--json``.
        type: Of the report.
        version: Of its schema.
        description: How its figures are to be read.
        key: A key that no kind after it has, which tells a stored one; empty where it is not
            read back.
        rerun: What writes a stored one anew, after ``breakeven``.
        schema: Name of its schema, where that is not the command's.
        title: What it is, where that is not the report of the command.
        document: Its type in JSON, where that is not the report's.
        write: Turns a report into that.
        read: Turns that into a report.
    """

    command: str
    type: type[msgspec.Struct]
    version: int
    description: str
    key: str = ""
    rerun: str = ""
    schema: str = ""
    title: str = ""
    document: type[msgspec.Struct] = None  # type: ignore[assignment]
    write: Callable[[Any], Any] = _same
    read: Callable[[Any], Any] = _same

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", self.schema or self.command)
        object.__setattr__(self, "title", self.title or f"Report of breakeven {self.command}")
        object.__setattr__(self, "document", self.document or self.type)


_FRACTIONS = "shares between 0 and 1; low and high bound a 90 % interval."
_OF_A_STEP = f"Times are in nanoseconds, sizes in bytes, {_FRACTIONS}"

KINDS = (
    # Before check, since an explanation has a verdict too.
    Kind(
        command="explain",
        type=ExplainReport,
        version=EXPLAIN_SCHEMA_VERSION,
        description=f"What `breakeven explain --json` prints. {_OF_A_STEP}",
        key="attribution",
        rerun="explain TARGET -o FILE --force",
    ),
    Kind(
        command="check",
        type=CheckReport,
        version=SCHEMA_VERSION,
        description=f"What `breakeven check --json` prints. {_OF_A_STEP}",
        key="verdict",
        rerun="check TARGET -o FILE --force",
    ),
    Kind(
        command="sweep",
        type=SweepReport,
        version=SWEEP_SCHEMA_VERSION,
        description=(
            "What `breakeven sweep --json` prints. Times are in nanoseconds; low and high bound "
            "a 90 % interval."
        ),
        key="axes",
        rerun="sweep TARGET -o FILE --force",
    ),
    Kind(
        command="workloads",
        type=SystemsReport,
        version=SYSTEMS_SCHEMA_VERSION,
        description=(
            f"What `breakeven workloads NAME --json` prints. {_OF_A_STEP} The unit of a "
            "table's column is its kind; an estimate has the unit of its column, whatever its "
            "keys are called."
        ),
        key="systems",
        rerun="workloads NAME -o FILE --force",
    ),
    Kind(
        command="tune",
        type=TuneReport,
        version=TUNE_SCHEMA_VERSION,
        description=(
            "What `breakeven tune --json` prints. Times are in nanoseconds; low and high bound a "
            "95 % interval of the ratio of two step times."
        ),
        rerun="tune TARGET --json > FILE",
    ),
    Kind(
        command="compare",
        type=ComparisonReport,
        version=COMPARISON_SCHEMA_VERSION,
        description=(
            "What `breakeven compare --json` prints. Times are in nanoseconds, ratios are those "
            "of the second run to the first; low and high bound a 90 % interval."
        ),
        rerun="compare A.json B.json --json > FILE",
    ),
    Kind(
        command="validate",
        type=AccuracyReport,
        version=VALIDATION_SCHEMA_VERSION,
        description=(
            "What `breakeven validate --json` prints. Times are in milliseconds, as in tables, "
            "errors and shares are fractions; low and high bound a 90 % interval."
        ),
        rerun="validate TABLE.csv -o FILE --force",
        document=ValidationDocument,
        write=validation_document,
        read=accuracy_report,
    ),
    Kind(
        command="calibrate",
        type=CalibrationDocument,
        version=CALIBRATION_SCHEMA_VERSION,
        description="What `breakeven calibrate --json` prints. Times are in nanoseconds per call.",
        title="Host of breakeven calibrate",
    ),
    Kind(
        command="devices",
        type=DevicesDocument,
        version=DEVICES_SCHEMA_VERSION,
        description="What `breakeven devices --json` prints. Sizes are in bytes, rates per second.",
        title="Devices of breakeven devices",
    ),
    Kind(
        command="devices",
        type=HostsDocument,
        version=HOSTS_SCHEMA_VERSION,
        description="What `breakeven devices --hosts --json` prints. Clocks are in hertz.",
        schema="hosts",
        title="Hosts of breakeven devices",
    ),
    Kind(
        command="rules",
        type=RulesDocument,
        version=RULES_SCHEMA_VERSION,
        description="What `breakeven rules --json` prints; texts are in Markdown.",
        title="Rules of breakeven rules",
    ),
)


def kind_of(report: msgspec.Struct) -> Kind:
    """Return the kind of a report."""
    return next(kind for kind in KINDS if kind.type is type(report))


def kinds_by_schema() -> Mapping[str, Kind]:
    """Return the kinds by the name of their schema, in alphabetical order."""
    return {kind.schema: kind for kind in sorted(KINDS, key=lambda kind: kind.schema)}

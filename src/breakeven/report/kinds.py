"""The kinds of documents that commands print, one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from breakeven.report.builders.check import check_document
from breakeven.report.builders.compare import comparison_document
from breakeven.report.builders.devices import (
    CALIBRATION_SCHEMA_VERSION,
    DEVICES_SCHEMA_VERSION,
    HOSTS_SCHEMA_VERSION,
    CalibrationDocument,
    DevicesDocument,
    HostsDocument,
)
from breakeven.report.builders.explain import explain_document
from breakeven.report.builders.rules import RULES_SCHEMA_VERSION, RulesDocument
from breakeven.report.builders.sweep import sweep_document
from breakeven.report.builders.systems import system_documents
from breakeven.report.builders.tune import tune_document
from breakeven.report.builders.validate import validation_document
from breakeven.report.builders.validate_stored import (
    VALIDATION_SCHEMA_VERSION,
    ValidationDocument,
    stored_validation,
)
from breakeven.report.document import Document
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
    """A kind of document. All of its schema versions so far are read.

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
        stored: Its type in JSON, where that is not the report's.
        build: Makes the document to be shown of a report.
        parts: Makes those that a terminal shows one after the other, where that is not one.
        write: Turns a report into what is stored.
    """

    command: str
    type: type[msgspec.Struct]
    version: int
    description: str
    key: str = ""
    rerun: str = ""
    schema: str = ""
    title: str = ""
    stored: type[msgspec.Struct] = None  # type: ignore[assignment]
    build: Callable[..., Document] | None = None
    parts: Callable[[Any], Iterable[Document]] | None = None
    write: Callable[[Any], Any] = _same

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", self.schema or self.command)
        object.__setattr__(self, "title", self.title or f"Report of breakeven {self.command}")
        object.__setattr__(self, "stored", self.stored or self.type)


_FRACTIONS = "shares between 0 and 1; low and high bound a 90 % interval."
_OF_A_STEP = f"Times are in nanoseconds, sizes in bytes, {_FRACTIONS}"

KINDS = (
    # Before check, since an explanation has a verdict too.
    Kind(
        command="explain",
        build=explain_document,
        type=ExplainReport,
        version=EXPLAIN_SCHEMA_VERSION,
        description=f"What `breakeven explain --json` prints. {_OF_A_STEP}",
        key="attribution",
        rerun="explain TARGET -o FILE --force",
    ),
    Kind(
        command="check",
        build=check_document,
        type=CheckReport,
        version=SCHEMA_VERSION,
        description=f"What `breakeven check --json` prints. {_OF_A_STEP}",
        key="verdict",
        rerun="check TARGET -o FILE --force",
    ),
    Kind(
        command="sweep",
        build=sweep_document,
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
        parts=system_documents,
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
        build=tune_document,
        type=TuneReport,
        version=TUNE_SCHEMA_VERSION,
        description=(
            "What `breakeven tune --json` prints. Times are in nanoseconds; low and high bound a "
            "95 % interval of the ratio of two step times."
        ),
        key="trials",
        rerun="tune TARGET --json > FILE",
    ),
    Kind(
        command="compare",
        build=comparison_document,
        type=ComparisonReport,
        version=COMPARISON_SCHEMA_VERSION,
        description=(
            "What `breakeven compare --json` prints. Times are in nanoseconds, ratios are those "
            "of the second run to the first; low and high bound a 90 % interval."
        ),
    ),
    Kind(
        command="validate",
        build=validation_document,
        type=AccuracyReport,
        version=VALIDATION_SCHEMA_VERSION,
        description=(
            "What `breakeven validate --json` prints. Times are in milliseconds, as in tables, "
            "errors and shares are fractions; low and high bound a 90 % interval."
        ),
        stored=ValidationDocument,
        write=stored_validation,
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

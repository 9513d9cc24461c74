"""A system with published figures, run on this machine: tables, curves, and checked claims.

The JSON schema is generated from these types, so a changed key breaks the contract: raise
``SYSTEMS_SCHEMA_VERSION`` with it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from breakeven.errors import Caveat
from breakeven.timing import Estimate
from breakeven.verdict.report import HostSummary
from breakeven.verdict.sweep_report import SweepReport

SYSTEMS_SCHEMA_VERSION = 2


class ColumnKind(StrEnum):
    """The quantity in a column; a renderer chooses its unit."""

    TEXT = "text"
    COUNT = "count"
    TIME_NS = "time_ns"
    PER_SECOND = "per_second"
    RATIO = "ratio"
    FRACTION = "fraction"
    BYTES = "bytes"


class TableColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a table.

    Args:
        name: Its heading.
        kind: The quantity of its numbers.
    """

    name: str
    kind: ColumnKind


Cell = str | int | float | Estimate | None


class RowSource(StrEnum):
    """The origin of a row's figures."""

    PUBLISHED = "published"
    MEASURED = "measured"
    PREDICTED = "predicted"
    CHECKED = "checked"
    """Not a figure: a statement that was found true or false here."""


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table.

    Args:
        source: Origin of its figures.
        cells: One cell per column; null if there is no figure.
    """

    source: RowSource
    cells: tuple[Cell, ...]


class SystemTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of figures.

    Args:
        title: Title of the table.
        columns: Its columns.
        rows: Its rows; published rows come first.
        note: Remark for the reader; may be empty.
    """

    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    note: str = ""


class ClaimOutcome(StrEnum):
    """Whether our figure agrees with the published one."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    OPEN = "open"
    """Within the interval on both sides, or it could not be run here."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A published statement, compared with our figure.

    Args:
        claim: The statement, with the band in which our figure counts as agreeing.
        published: The published figure.
        ours: Our figure, with its interval, device and host.
        outcome: Whether they agree.
        because: The reason for a disagreement, or a remark on the agreement; one or two sentences.
    """

    claim: str
    published: str
    ours: str
    outcome: ClaimOutcome
    because: str


class SystemReport(msgspec.Struct, frozen=True, kw_only=True):
    """One system: its published figures and ours.

    Args:
        name: Name, as given to ``breakeven workloads``.
        title: Description, in one line.
        published_in: Publication of its figures.
        script: File name of its script; empty if it has none.
        host: The machine that feeds the devices.
        tables: Published figures and ours.
        sweeps: Curves, with the published figures along their axes.
        claims: Published claims about it.
        caveats: Reasons to trust all of its figures less.
    """

    name: str
    title: str
    published_in: str
    script: str
    host: HostSummary
    tables: tuple[SystemTable, ...] = ()
    sweeps: tuple[SweepReport, ...] = ()
    claims: tuple[Claim, ...] = ()
    caveats: tuple[Caveat, ...] = ()


class SystemsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `breakeven workloads`.

    Args:
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        systems: The systems that were run.
        failures: Reason for each system that could not be run, by name.
    """

    schema_version: int
    systems: tuple[SystemReport, ...]
    failures: dict[str, str] = {}

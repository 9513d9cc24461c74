"""One of the systems with published figures, run here: tables, curves, and whether claims hold.

The JSON schema is generated from these types, so a changed key is a changed contract: raise
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
    """What the numbers of a column are; a renderer chooses their unit."""

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
        kind: What its numbers are.
    """

    name: str
    kind: ColumnKind


Cell = str | int | float | Estimate | None


class RowSource(StrEnum):
    """Where the figures of a row come from."""

    PUBLISHED = "published"
    MEASURED = "measured"
    PREDICTED = "predicted"
    CHECKED = "checked"
    """Not a figure: a statement that was found true or false here."""


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table.

    Args:
        source: Where its figures come from.
        cells: One per column; null where there is no figure.
    """

    source: RowSource
    cells: tuple[Cell, ...]


class SystemTable(msgspec.Struct, frozen=True, kw_only=True):
    """Figures side by side.

    Args:
        title: What they show.
        columns: Headings.
        rows: Published rows stand above ours.
        note: What a reader must know of them; may be empty.
    """

    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    note: str = ""


class ClaimOutcome(StrEnum):
    """Whether ours agrees with what was published."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    OPEN = "open"
    """Within the interval on both sides, or it could not be run here."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A published statement beside what is found here.

    Args:
        claim: The statement, with the band within which ours counts as agreeing.
        published: The published figure.
        ours: The figure found here, with its interval and on which device and host.
        outcome: Whether they agree.
        because: Why they do not, or what to know of the agreement; one or two sentences.
    """

    claim: str
    published: str
    ours: str
    outcome: ClaimOutcome
    because: str


class SystemReport(msgspec.Struct, frozen=True, kw_only=True):
    """One system: what was published of it, and what breakeven finds.

    Args:
        name: As given to ``breakeven workloads``.
        title: What it is, in a line.
        published_in: Where its figures were published.
        script: The file name of its script; empty where it has none.
        host: The machine that feeds the devices.
        tables: Figures side by side.
        sweeps: Curves, with the published figures that lie on their axes.
        claims: What was claimed of it.
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
    """What `breakeven workloads` found out.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        systems: Those that were run.
        failures: Why a system could not be run, by its name.
    """

    schema_version: int
    systems: tuple[SystemReport, ...]
    failures: dict[str, str] = {}

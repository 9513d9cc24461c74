"""The six systems: their published figures, how to run them, and how to compare figures.

``systems.toml`` has the published figures. Each system has a module of its name, with ``_`` for
``-``, that is imported only to run it. Its function ``run`` measures the system on a bench,
predicts it elsewhere, and compares both with the published figures.
"""

from __future__ import annotations

import importlib
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from typing import Any, NamedTuple

import msgspec

from breakeven.errors import Caveat, UsageError
from breakeven.progress import Progress
from breakeven.report import (
    Cell,
    Claim,
    ClaimOutcome,
    ColumnKind,
    RowSource,
    SystemReport,
    SystemTable,
    TableColumn,
    TableRow,
)
from breakeven.systems.bench import Bench
from breakeven.timing import Estimate
from breakeven.units import format_digits
from breakeven.verdict import HostSummary, SweepReport

FACTS: dict[str, dict[str, Any]] = tomllib.loads(
    resources.files("breakeven.systems").joinpath("systems.toml").read_text("utf-8")
)


class SystemEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A system: a network with published figures that can be run and compared with them.

    Args:
        name: Name on the command line.
        title: One-line description.
        published: One-line summary of the published result.
        published_in: The publication.
        about_s: Approximate duration on two cores, in seconds.
        scripts: File names of its scripts; its report names the first.
    """

    name: str
    title: str
    published: str
    published_in: str
    about_s: float
    scripts: tuple[str, ...]


SYSTEMS = tuple(msgspec.convert({"name": n, **facts}, SystemEntry) for n, facts in FACTS.items())
_BY_NAME = {entry.name: entry for entry in SYSTEMS}


def find_systems(names: Sequence[str]) -> tuple[SystemEntry, ...]:
    """Return the systems of these names, without repeats, in the order given.

    Raises:
        UsageError: If there is no such system.
    """
    for name in names:
        if name not in _BY_NAME:
            near = get_close_matches(name, _BY_NAME, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise UsageError(
                f"there is no system {name!r}", hint=f"{meant}there are: {', '.join(_BY_NAME)}"
            )
    return tuple(_BY_NAME[name] for name in dict.fromkeys(names))


def run_system(
    entry: SystemEntry,
    *,
    host: str = "auto",
    time_limit_s: float = 120.0,
    progress: Progress | None = None,
) -> SystemReport:
    """Run one system on a separate bench, so that a failing script affects no other system.

    Args:
        entry: The system.
        host: The host of the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name.
        time_limit_s: Limit of each run of a script, in seconds.
        progress: Progress callback.

    Raises:
        BreakevenError: If it could not be run, or there is no such host.
    """
    module = importlib.import_module(f"breakeven.systems.{entry.name.replace('-', '_')}")
    with Bench(host=host, time_limit_s=time_limit_s, progress=progress) as bench:
        return module.run(bench)


def report(
    name: str,
    host: HostSummary,
    *,
    tables: Iterable[SystemTable],
    claims: Iterable[Claim],
    sweeps: tuple[SweepReport, ...] = (),
    caveats: tuple[Caveat, ...] = (),
) -> SystemReport:
    """Return the report of the system called ``name``."""
    entry = _BY_NAME[name]
    return SystemReport(
        name=name,
        title=entry.title,
        published_in=entry.published_in,
        script=entry.scripts[0],
        host=host,
        tables=tuple(tables),
        sweeps=sweeps,
        claims=tuple(claims),
        caveats=caveats,
    )


def table(
    title: str,
    columns: Mapping[str, ColumnKind],
    *rows: tuple[RowSource, Iterable[Iterable[Cell]]],
    note: str = "",
) -> SystemTable:
    """Make a table.

    Args:
        title: Title of the table.
        columns: Kind of each column, by its heading.
        rows: Cells of some rows with their source; published ones first.
        note: Remark for the reader.
    """
    return SystemTable(
        title=title,
        columns=tuple(TableColumn(name=name, kind=kind) for name, kind in columns.items()),
        rows=tuple(
            TableRow(source=source, cells=tuple(cells)) for source, some in rows for cells in some
        ),
        note=note,
    )


def texts(*names: str) -> dict[str, ColumnKind]:
    """Return columns of text."""
    return dict.fromkeys(names, ColumnKind.TEXT)


def times(*names: str) -> dict[str, ColumnKind]:
    """Return columns of times."""
    return dict.fromkeys(names, ColumnKind.TIME_NS)


class Ratio(NamedTuple):
    """Ratio of the times of two steps, with its 90 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        low, value, high = (format_digits(each, 2) for each in (self.low, self.value, self.high))
        return f"{value}× ({low}–{high}×)"


def ratio_of(slower: Estimate, faster: Estimate) -> Ratio:
    """Return the ratio of the times of two steps.

    Errors are assumed to be independent, so their distances on a logarithmic scale add in squares.
    Two predictions for one GPU and host share some of their error: the interval is too wide.
    """
    value = slower.value_ns / faster.value_ns
    below = (slower.value_ns / slower.low_ns, faster.high_ns / faster.value_ns)
    above = (slower.high_ns / slower.value_ns, faster.value_ns / faster.low_ns)
    return Ratio(
        value=value,
        low=value / math.exp(math.hypot(*map(math.log, below))),
        high=value * math.exp(math.hypot(*map(math.log, above))),
    )


def judge(
    value: float, low: float, high: float | None, band: Sequence[float]
) -> tuple[ClaimOutcome, str]:
    """Decide whether a figure agrees with a published one, and return a remark on its interval.

    It agrees if it is in the band, and disagrees if all of its interval is outside. Otherwise the
    interval is too wide to decide. The remark ends with a space, or is empty.

    Args:
        value: Our figure.
        low: Lower end of its 90 % interval.
        high: Upper end; None if there is none.
        band: The smallest and the largest figure that agree.
    """
    least, most = band
    highest = math.inf if high is None else high
    if least <= value <= most:
        is_within = least <= low and highest <= most
        remark = "" if is_within else "Within the published range, but its interval exceeds it. "
        return ClaimOutcome.AGREES, remark
    if low <= most and highest >= least:
        return ClaimOutcome.OPEN, "Outside the published range, but its interval overlaps it. "
    return ClaimOutcome.DISAGREES, ""


def judged_claim(
    ratio: Ratio, band: Sequence[float], *, claim: str, published: str, ours: str, because: str
) -> Claim:
    """Return a claim that a ratio is in its band."""
    outcome, remark = judge(*ratio, band)
    return Claim(
        claim=claim, published=published, ours=ours, outcome=outcome, because=remark + because
    )

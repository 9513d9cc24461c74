"""The page of systems with published figures: claims first, then each system's figures."""

from __future__ import annotations

from collections.abc import Iterator

from breakeven.report.cell_text import cell_text
from breakeven.report.chart_build import axis_word
from breakeven.report.check_text import busy_warnings, grouped_caveats, host_facts
from breakeven.report.html_model import Page, PageSection, PageTable
from breakeven.report.html_sweep import crossover_section, sweep_sections, sweep_warnings
from breakeven.report.systems_terminal import claim_counts
from breakeven.report.text import printable, shorten
from breakeven.timing import Estimate
from breakeven.verdict import (
    Cell,
    ColumnKind,
    SystemReport,
    SystemsReport,
    SystemTable,
    TableRow,
)


def systems_page(report: SystemsReport) -> Page:
    """Return the page of one or more systems."""
    answers = [claim_counts(report)]
    answers += [
        f"{printable(name, 60)} was not run: {printable(reason, 600)}"
        for name, reason in report.failures.items()
    ]
    # Each was run on one machine, but a system may be fed by another host.
    facts = tuple(host_facts(report.systems[0].host)) if report.systems else ()
    sections = [section for system in report.systems for section in _system_sections(system)]
    return Page(
        title="Systems with published figures, side by side",
        answers=tuple(answers),
        warnings=(),
        facts=facts,
        sections=(*_claim_section(report), *sections),
    )


def _claim_section(report: SystemsReport) -> tuple[PageSection, ...]:
    pairs = [(system, claim) for system in report.systems for claim in system.claims]
    if not pairs:
        return ()
    table = PageTable(
        caption="What was claimed, what is found here, and whether they agree",
        headings=("system", "claim", "published", "ours", "outcome", "because"),
        are_numbers=(False,) * 6,
        rows=tuple(
            (
                printable(system.name, 60),
                printable(claim.claim, 600),
                printable(claim.published),
                printable(claim.ours),
                claim.outcome.value,
                printable(claim.because, 600),
            )
            for system, claim in pairs
        ),
        marks=tuple(claim.outcome.value for _, claim in pairs),
    )
    return (PageSection(title="Claims", tables=(table,)),)


def _system_sections(system: SystemReport) -> Iterator[PageSection]:
    caveats = grouped_caveats(
        (*system.caveats, *(caveat for sweep in system.sweeps for caveat in sweep.caveats)),
        [
            (printable(point.device, 60), point.caveats)
            for sweep in system.sweeps
            for point in sweep.points
        ],
    )
    yield PageSection(
        title=f"{printable(system.name, 60)}: {printable(system.title)}",
        paragraphs=(
            f"Published in {printable(system.published_in)}."
            + (f" Script: {printable(system.script)}." if system.script else ""),
            *(warning for sweep in system.sweeps for warning in sweep_warnings(sweep)),
            *busy_warnings(system.caveats),
        ),
        items=tuple(
            printable(caveat.message, 600)
            + (f" ({shorten(', '.join(names), 200)})" if names else "")
            for caveat, names in caveats.items()
        ),
        tables=tuple(_table(table) for table in system.tables),
    )
    for sweep in system.sweeps:
        along = " and ".join(axis_word(axis.name) for axis in sweep.axes)
        yield PageSection(
            title=f"{printable(sweep.target, 120)}, by {along}",
            level=3,
        )
        yield from crossover_section(sweep, level=4)
        yield from sweep_sections(sweep, level=4)


def _table(table: SystemTable) -> PageTable:
    kinds = [column.kind for column in table.columns]
    return PageTable(
        caption=printable(table.title),
        headings=(*(printable(column.name, 80) for column in table.columns), "source"),
        are_numbers=(*(kind is not ColumnKind.TEXT for kind in kinds), False),
        rows=tuple(
            (
                *(_row_cell(cell, kind, row) for cell, kind in zip(row.cells, kinds, strict=True)),
                row.source.value,
            )
            for row in table.rows
        ),
        marks=tuple(row.source.value for row in table.rows),
        note=printable(table.note, 1_000),
    )


def _row_cell(cell: Cell, kind: ColumnKind, row: TableRow) -> str:
    text = cell_text(cell, kind)
    # A measured CPU beside a predicted GPU: the row's source is that of one of them.
    if isinstance(cell, Estimate) and cell.source.value != row.source.value:
        return f"{text} {cell.source}"
    return text

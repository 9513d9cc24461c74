"""The documents of systems with published figures: each system's figures, then all claims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from breakeven.report.answer_text import SOURCE_MARKS
from breakeven.report.document import Cell, Column, Document, Line, Section, Table, fact_lines
from breakeven.report.run_text import caveat_section, host_facts
from breakeven.report.sweep import headline, sweep_facts, sweep_sections, sweep_warnings
from breakeven.report.system_report import Cell as Figure
from breakeven.report.system_report import (
    ClaimOutcome,
    ColumnKind,
    RowSource,
    SystemReport,
    SystemsReport,
    SystemTable,
)
from breakeven.report.text import (
    duration_with_interval,
    plural,
    printable,
    ratio_alone,
    ratio_with_interval,
)
from breakeven.timing import Estimate, Source
from breakeven.units import (
    format_bytes,
    format_count,
    format_digits,
    format_duration,
    format_percent,
)

_MAX_CAVEATS = 8
_OUTCOME_STYLES = {
    ClaimOutcome.AGREES: "green",
    ClaimOutcome.DISAGREES: "red",
    ClaimOutcome.OPEN: "yellow",
}
_ROW_MARKS = {
    RowSource.PUBLISHED: ("◆", "magenta"),
    RowSource.MEASURED: SOURCE_MARKS[Source.MEASURED],
    RowSource.PREDICTED: SOURCE_MARKS[Source.PREDICTED],
    RowSource.CHECKED: ("▪", "cyan"),
}


def system_documents(report: SystemsReport) -> Iterator[Document]:
    """Yield the documents for a terminal: one of each system, then one of all claims."""
    yield from map(system_document, report.systems)
    if len(report.systems) + len(report.failures) > 1:
        yield claims_document(report)


def system_document(system: SystemReport) -> Document:
    """Return the document of one system, shown in a terminal when the system has run."""
    name = printable(system.name)
    answers = [
        Line(((name, "bold"), f": {printable(system.title)}")),
        Line(f"published in {printable(system.published_in)}", "dim"),
        *fact_lines(host_facts(system.host)),
    ]
    if system.script:
        copy = f"a copy of yours: breakeven workloads {name} --write-script ."
        answers.append(Line(f"script: {printable(system.script)} ({copy})", "dim"))
    return Document(title=system.title, answers=answers, blocks=tuple(_sections(system)))


def _sections(system: SystemReport) -> Iterator[Section]:
    """Yield tables, curves, caveats and claims of a system."""
    for table in system.tables:
        yield Section(printable(table.title), (_table(table),))
    for sweep in system.sweeps:
        lines = (
            Line(headline(sweep), "bold"),
            *(Line(warning, "yellow") for warning in sweep_warnings(sweep)),
            Line(""),
            *fact_lines(sweep_facts(sweep)),
        )
        yield Section("", lines)
        yield from sweep_sections(sweep)
    yield from caveat_section(system.caveats, most=_MAX_CAVEATS)
    claims: list[Line] = []
    for claim in system.claims:
        style = f"bold {_OUTCOME_STYLES[claim.outcome]}"
        claims.append(Line(((claim.outcome.value, style), f"  {printable(claim.claim)}"), indent=2))
        for label, text in (("published", claim.published), ("ours", claim.ours)):
            claims.append(Line(((f"{label}: ", "dim"), printable(text)), indent=4))
        if claim.because:
            claims.append(Line(printable(claim.because, 600), indent=4))
    if claims:
        yield Section("The claim" if len(system.claims) == 1 else "The claims", claims)


def _table(table: SystemTable) -> Table:
    sources = {row.source for row in table.rows}
    for row in table.rows:
        sources |= {RowSource(cell.source) for cell in row.cells if isinstance(cell, Estimate)}
    shown = [source for source in RowSource if source in sources - {RowSource.CHECKED}]
    legend: list[str | tuple[str, str]] = []
    for number, source in enumerate(shown):
        legend += ["   " if number else "", _ROW_MARKS[source], f" {source.value}"]
    note = printable(table.note, 1_000)
    if note:
        legend += ["\n" if legend else "", note]
    columns: list[Column] = []
    every = zip(*(row.cells for row in table.rows), strict=True)
    for number, (column, figures) in enumerate(zip(table.columns, every, strict=True)):
        cells: list[Cell | str] = []
        for figure, row in zip(figures, table.rows, strict=True):
            text = cell_text(figure, column.kind)
            if not number:
                cells.append(Cell((_ROW_MARKS[row.source], f"  {text}")))
            elif isinstance(figure, Estimate) and figure.source.value != row.source.value:
                # A row with a measured CPU and a predicted GPU has the source of only one of them.
                cells.append(f"{_ROW_MARKS[RowSource(figure.source)][0]} {text}")
            else:
                cells.append(text)
        is_text = column.kind is ColumnKind.TEXT
        header = ("" if number else "   ") + printable(column.name, 80)
        columns.append(Column(header, cells, is_number=not is_text, least=12 if is_text else 0))
    return Table(columns, legend=tuple(legend))


def cell_text(cell: Figure, kind: ColumnKind) -> str:
    """Return a cell in a readable unit; an estimate with its interval."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return printable(cell, 300)
    if not isinstance(cell, Estimate):
        return _figure_text(cell, kind)
    interval = cell.value_ns, cell.low_ns, cell.high_ns
    if kind is ColumnKind.TIME_NS:
        return duration_with_interval(*interval)
    if kind is ColumnKind.RATIO:
        return ratio_with_interval(*interval)
    value, low, high = (_figure_text(figure, kind) for figure in interval)
    return f"{value} ({low}–{high})"


def _figure_text(figure: float, kind: ColumnKind) -> str:
    match kind:
        case ColumnKind.TIME_NS:
            return format_duration(figure)
        case ColumnKind.RATIO:
            return ratio_alone(figure)
        case ColumnKind.FRACTION:
            return format_percent(figure)
        case ColumnKind.BYTES:
            return format_bytes(figure)
        case ColumnKind.PER_SECOND:
            return f"{format_count(figure)}/s"
        case ColumnKind.COUNT:
            return f"{figure:,}" if isinstance(figure, int) else format_count(figure)
        case ColumnKind.TEXT:
            return format_digits(figure)
        case _:
            assert_never(kind)


def claims_document(report: SystemsReport) -> Document:
    """Return the table of all claims, and the systems that were not run, with reasons."""
    rows: list[tuple[str, str, str, Cell | str]] = []
    for system in report.systems:
        for number, claim in enumerate(system.claims):
            outcome = (claim.outcome.value, _OUTCOME_STYLES[claim.outcome])
            rows.append(
                (
                    "" if number else printable(system.name, 20),
                    f"{printable(claim.claim)}; published: {printable(claim.published)}",
                    printable(claim.ours),
                    Cell((outcome, f": {printable(claim.because, 600)}")),
                )
            )
    for name, reason in report.failures.items():
        rows.append((printable(name, 20), "", "", f"not run: {printable(reason, 600)}"))
    headings = ("system", "published claim", "ours", "agrees or not, and why")
    columns = zip(*rows, strict=True) if rows else ((),) * 4
    table = Table(
        [
            Column(heading, cells, least=8 if heading != "system" else 0)
            for heading, cells in zip(headings, columns, strict=True)
        ]
    )
    title = "What was published, and what is found here"
    counts = Line(claim_counts(report), "bold")
    return Document(title=title, answers=(Line(title, "bold"),), blocks=(table, counts))


def claim_counts(report: SystemsReport) -> str:
    """Return the numbers of claims that agree, disagree and are open, in a sentence."""
    claims = [claim for system in report.systems for claim in system.claims]
    agree, disagree, is_open = (
        sum(claim.outcome is outcome for claim in claims) for outcome in ClaimOutcome
    )
    counts = f"agreeing {agree}, disagreeing {disagree}, open {is_open}"
    sentence = f"{plural(len(claims), 'claim')}: {counts}."
    if report.failures:
        systems = "system was" if len(report.failures) == 1 else "systems were"
        sentence += f" {len(report.failures)} {systems} not run."
    return sentence

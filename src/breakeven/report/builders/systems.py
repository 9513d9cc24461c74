"""The documents of systems with published figures: each system's figures, and all claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from breakeven.report.builders.sweep import (
    sweep_caveats,
    sweep_facts,
    sweep_sections,
    sweep_warnings,
)
from breakeven.report.builders.sweep_crossovers import headline
from breakeven.report.document import Document, Lines, Section
from breakeven.report.phrase import Fact, Line, Medium
from breakeven.report.result_text import SOURCE_MARKS
from breakeven.report.run_text import caveat_section, held_caveats, host_facts
from breakeven.report.table import Cell, Column, Table
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
from breakeven.verdict import Cell as Figure
from breakeven.verdict import (
    ClaimOutcome,
    ColumnKind,
    RowSource,
    SystemReport,
    SystemsReport,
    SystemTable,
    TableRow,
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


def system_document(system: SystemReport) -> Document:
    """Return the document of one system, as a terminal shows it once that has run."""
    script = printable(system.script) if system.script else ""
    copy = f"a copy of yours: breakeven workloads {printable(system.name)} --write-script ."
    lines = [
        Line(((printable(system.name), "bold"), f": {printable(system.title)}")),
        Line(f"published in {printable(system.published_in)}", "dim"),
        *_fact_lines(host_facts(system.host)),
        *([Line(f"script: {script} ({copy})", "dim")] if script else []),
    ]
    title = "The claim" if len(system.claims) == 1 else "The claims"
    claims = Lines(tuple(_claim_lines(system)))
    return Document(
        title=system.title,
        answers=lines,
        blocks=(*_figure_sections(system), *([Section(title, (claims,))] if system.claims else [])),
    )


def system_documents(report: SystemsReport) -> Iterator[Document]:
    """Yield the documents that a terminal shows: of each system, then of all claims."""
    yield from map(system_document, report.systems)
    if len(report.systems) + len(report.failures) > 1:
        yield claims_document(report)


def claims_document(report: SystemsReport) -> Document:
    """Return the table of all claims, and which systems were not run and why."""
    rows = [
        (
            "" if number else printable(system.name, 20),
            f"{printable(claim.claim)}; published: {printable(claim.published)}",
            printable(claim.ours),
            Cell(
                (
                    (claim.outcome.value, _OUTCOME_STYLES[claim.outcome]),
                    f": {printable(claim.because, 600)}",
                )
            ),
        )
        for system in report.systems
        for number, claim in enumerate(system.claims)
    ]
    rows += [
        (printable(name, 20), "", "", f"not run: {printable(reason, 600)}")
        for name, reason in report.failures.items()
    ]
    names, claims, ours, outcomes = zip(*rows, strict=True) if rows else ((),) * 4
    table = Table(
        (
            Column("system", names),
            Column("published claim", claims, folds=True, least=8),
            Column("ours", ours, folds=True, least=8),
            Column("agrees or not, and why", outcomes, folds=True, least=8),
        ),
    )
    return Document(
        title="What was published, and what is found here",
        answers=(Line("What was published, and what is found here", "bold"),),
        blocks=(table, Lines((Line(claim_counts(report), "bold"),))),
    )


def claim_counts(report: SystemsReport) -> str:
    """Return how many claims agree, disagree and are open, in a sentence."""
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


def _fact_lines(facts: Iterable[Fact]) -> Iterator[Line]:
    for fact in facts:
        if fact.only is not Medium.PAGE:
            text = fact.text if fact.is_bare else f"{fact.name}: {fact.text}"
            yield Line(text, "dim")


def _claim_lines(system: SystemReport) -> Iterator[Line]:
    for claim in system.claims:
        style = f"bold {_OUTCOME_STYLES[claim.outcome]}"
        yield Line(((claim.outcome.value, style), f"  {printable(claim.claim)}"), indent=2)
        for label, text in (("published", claim.published), ("ours", claim.ours)):
            yield Line(((f"{label}: ", "dim"), printable(text)), indent=4)
        if claim.because:
            yield Line(printable(claim.because, 600), indent=4)


def _figure_sections(system: SystemReport) -> Iterator[Section]:
    """Yield tables, curves and caveats of a system."""
    for table in system.tables:
        yield Section(printable(table.title), (_table(table),))
    for sweep in system.sweeps:
        lines = (
            Line(headline(sweep), "bold"),
            *(Line(warning, "yellow") for warning in sweep_warnings(sweep)),
            Line(""),
            *_fact_lines(sweep_facts(sweep)),
        )
        yield Section("", (Lines(lines),))
        yield from sweep_sections(sweep)
        yield from caveat_section(sweep_caveats(sweep))
    yield from caveat_section(held_caveats(system.caveats, (), 0), most=_MAX_CAVEATS)


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
    columns = zip(*(row.cells for row in table.rows), strict=True)
    return Table(
        (
            *(
                Column(
                    f"   {printable(column.name, 80)}"
                    if not number
                    else printable(column.name, 80),
                    [
                        _figure(cell, column.kind, row, is_first=not number)
                        for cell, row in zip(cells, table.rows, strict=True)
                    ],
                    is_number=column.kind is not ColumnKind.TEXT,
                    folds=column.kind is ColumnKind.TEXT,
                    least=12,
                )
                for number, (column, cells) in enumerate(zip(table.columns, columns, strict=True))
            ),
        ),
        legend=tuple(legend),
    )


def _figure(figure: Figure, kind: ColumnKind, row: TableRow, *, is_first: bool) -> Cell | str:
    text = cell_text(figure, kind)
    if is_first:
        return Cell((_ROW_MARKS[row.source], f"  {text}"))
    if not isinstance(figure, Estimate):
        return text
    if figure.source.value == row.source.value:
        return text
    # A measured CPU beside a predicted GPU: the row's source is that of one of them.
    mark, _ = _ROW_MARKS[RowSource(figure.source)]
    return Cell(f"{mark} {text}")


def cell_text(cell: Figure, kind: ColumnKind) -> str:
    """Return a cell in the unit that a person would choose; an estimate with its interval."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return printable(cell, 300)
    if isinstance(cell, Estimate):
        return _estimate_text(cell, kind)
    return _figure_text(cell, kind)


def _estimate_text(estimate: Estimate, kind: ColumnKind) -> str:
    value, low, high = estimate.value_ns, estimate.low_ns, estimate.high_ns
    if kind is ColumnKind.TIME_NS:
        return duration_with_interval(value, low, high)
    if kind is ColumnKind.RATIO:
        return ratio_with_interval(value, low, high)
    ends = f"{_figure_text(low, kind)}–{_figure_text(high, kind)}"
    return f"{_figure_text(value, kind)} ({ends})"


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

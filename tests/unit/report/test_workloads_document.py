"""The documents of systems with published figures."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace
from rich.console import Console

from breakeven.errors import Caveat
from breakeven.report import (
    ColumnKind,
    RowSource,
    SystemReport,
    SystemsReport,
    SystemTable,
    TableColumn,
    TableRow,
    claims_document,
    render,
    system_document,
)
from factories import systems as made_up
from factories import terminal


def show_all(report: SystemsReport, console: Console) -> None:
    for system in report.systems:
        render(system_document(system), console)
        console.line()
    render(claims_document(report), console)


shown = partial(terminal.shown, shows=show_all, height=25)


def of_one(system: SystemReport) -> SystemsReport:
    return SystemsReport(schema_version=2, systems=(system,))


def wide_table() -> SystemTable:
    """Return a table of more figures than a terminal is wide for."""
    names = [f"column {number}" for number in range(20)]
    return SystemTable(
        title="Seconds per mini-batch",
        columns=(
            TableColumn(name="network", kind=ColumnKind.TEXT),
            *(TableColumn(name=name, kind=ColumnKind.TIME_NS) for name in names),
        ),
        rows=(
            TableRow(
                source=RowSource.PREDICTED,
                cells=("AlexNet-S", *(made_up.estimate(10.0 + n) for n in range(20))),
            ),
        ),
    )


def test_a_table_too_wide_goes_on_behind_the_same_first_column() -> None:
    text = shown(of_one(made_up.system(tables=(wide_table(),))))
    assert text.count("AlexNet-S") > 1
    for number in range(20):
        assert f"{10 + number} ms" in text
    assert "…" not in text


def test_intervals_are_whole_at_any_width() -> None:
    for columns in (50, 100):
        assert "1.2 ms (1–1.6)" in shown(of_one(made_up.system()), columns=columns)


def test_a_figure_of_another_source_than_its_row_says_so() -> None:
    table = made_up.table()
    measured = table.rows[1]
    mixed = replace(measured, cells=(measured.cells[0], made_up.estimate(3.0), None, None, None))
    text = shown(of_one(made_up.system(tables=(replace(table, rows=(mixed,)),))))
    (line,) = [line for line in text.splitlines() if "this CPU, 1 thread" in line]
    assert "●  this CPU" in line
    assert "○ 3" in line
    assert "● measured   ○ predicted" in text


def test_a_repeated_caveat_is_shown_once() -> None:
    caveat = Caveat(code="busy", message="the machine was busy")
    text = shown(of_one(made_up.system(caveats=(caveat,) * 3)))
    assert text.count("the machine was busy") == 1

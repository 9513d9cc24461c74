"""What systems with published figures look like at a terminal and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from breakeven.errors import Caveat
from breakeven.report import claims_document, render, system_document, to_json
from breakeven.verdict import (
    ColumnKind,
    RowSource,
    SystemReport,
    SystemsReport,
    SystemTable,
    TableColumn,
    TableRow,
)
from factories import systems as made_up
from factories import terminal
from factories.sweeps import HOSTILE, widths
from factories.terminal import flat

SCHEMA_FILE = Path(__file__).parents[3] / "docs" / "schema" / "workloads.schema.json"


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


def test_golden_at_80_columns(check_golden: Callable[[str, str], None]) -> None:
    check_golden("terminal_workloads.txt", shown(made_up.report()))


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    report = of_one(made_up.system(tables=(made_up.table(), wide_table()), sweeps=(widths(),)))
    assert max(cell_len(line) for line in shown(report, columns=columns).splitlines()) <= columns


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


def test_every_claim_is_in_the_last_table_with_what_agrees_and_why() -> None:
    text = flat(shown(made_up.report()).partition("What was published")[2])
    for claim in ("agrees: The hosts", "disagrees: The", "open: The hosts"):
        assert claim in text
    assert "not run: neural_ode.py took" in text
    assert "3 claims: agreeing 1, disagreeing 1, open 1. 1 system was not run." in text


def test_a_terminal_without_unicode_gets_signs_that_it_has() -> None:
    text = shown(made_up.report(), encoding="ascii")
    assert "# published   * measured   o predicted" in text


def test_hostile_names_cannot_steer_the_terminal() -> None:
    claim = replace(
        made_up.claim(), claim=HOSTILE, published=HOSTILE, ours=HOSTILE, because=HOSTILE
    )
    table = made_up.table()
    row = TableRow(source=RowSource.PUBLISHED, cells=(HOSTILE, None, None, None, None))
    system = made_up.system(
        HOSTILE,
        title=HOSTILE,
        published_in=HOSTILE,
        script=HOSTILE,
        tables=(replace(table, title=HOSTILE, note=HOSTILE, rows=(row,)),),
        claims=(claim,),
        caveats=(Caveat(code=HOSTILE, message=HOSTILE),),
    )
    text = shown(replace(of_one(system), failures={HOSTILE: HOSTILE}))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[/red]" in text  # shown as it is, not taken for markup


def test_a_repeated_caveat_is_shown_once() -> None:
    caveat = Caveat(code="busy", message="the machine was busy")
    text = shown(of_one(made_up.system(caveats=(caveat,) * 3)))
    assert text.count("the machine was busy") == 1


def test_document_validates_against_the_schema_file_and_is_read_back() -> None:
    report = replace(made_up.report(), systems=(made_up.system(sweeps=(widths(),)),))
    document = to_json(report)
    schema = json.loads(SCHEMA_FILE.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(document))
    assert msgspec.json.decode(document, type=SystemsReport) == report
    wrong = {**json.loads(document), "schema_version": 9}
    assert not jsonschema.Draft202012Validator(schema).is_valid(wrong)


def test_schema_file_is_the_generated_schema() -> None:
    command = [sys.executable, "-m", "breakeven.report.schema", "workloads"]
    generated = subprocess.run(command, capture_output=True, check=True).stdout
    assert SCHEMA_FILE.read_bytes() == generated, "run the command in breakeven/report/schema.py"

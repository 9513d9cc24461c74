"""Reports of all kinds at a terminal: as they were, within its width, and steered by no name."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from breakeven.errors import Caveat
from breakeven.report import CheckReport, RowSource, SystemsReport, TableRow, compare_reports, show
from breakeven.verdict import CodeChange, Machine, TuneReport
from factories import explanations, reports, sweeps, systems, terminal, tunings
from factories.accuracy import mixed, report_of
from factories.terminal import HOSTILE

EVERY_NUMBER = "Every number as JSON: --json, or -o "
# Golden files hold the hints that their command gives.
HINTS = {
    "explain": "What a finding means: breakeven rules SYNC001",
    "tune": "Train with it: breakeven run train.py",
    "sweep": f"{EVERY_NUMBER}sweep.json",
    "check": f"{EVERY_NUMBER}report.json",
}
REPORTS: dict[str, Any] = {
    **{f"check {name}": make() for name, make in reports.ALL.items()},
    **{f"explain {name}": make() for name, make in explanations.ALL.items()},
    **{f"sweep {name}": make() for name, make in sweeps.ALL.items()},
    **{f"tune {name}": make() for name, make in tunings.ALL.items()},
    "workloads": systems.report(),
    "workloads with a sweep": replace(
        systems.report(), systems=(systems.system(sweeps=(sweeps.widths(),)),)
    ),
    "compare": compare_reports(reports.cpu_wins(), reports.gpu_wins()),
    "compare hostile": compare_reports(sweeps.grid(), sweeps.hostile()),
    "compare systems": compare_reports(systems.report(), systems.report()),
}


def shown(name: str, **terminal_options: Any) -> str:
    hint = HINTS.get(name.split()[0])
    shows = partial(show, hints=(hint,)) if hint else show
    return terminal.shown(REPORTS[name], shows=shows, **terminal_options)


@pytest.mark.parametrize("name", [name for name in REPORTS if name.split()[0] in HINTS])
def test_golden_at_80_columns(name: str, check_golden: Callable[[str, str], None]) -> None:
    kind, of = name.split()
    if kind != "sweep":
        prefix = "" if kind == "check" else f"{kind}_"
        check_golden(f"terminal_{prefix}{of}.txt", shown(name))


def test_golden_of_sweeps_and_systems(check_golden: Callable[[str, str], None]) -> None:
    names = ("sweep batch_sizes", "sweep widths")
    check_golden("terminal_sweep.txt", "\n".join(shown(name, height=25) for name in names))
    check_golden("terminal_workloads.txt", shown("workloads", height=25))


def test_golden_of_a_validation(tmp_path: Path, check_golden: Callable[[str, str], None]) -> None:
    report = mixed(tmp_path / "t.csv")
    for columns in (40, 60, 120):
        lines = terminal.shown(report, columns).splitlines()
        assert max(map(cell_len, lines)) <= columns
    shows = partial(show, hints=("Every row as JSON: --json",))
    check_golden("terminal_validate.txt", terminal.shown(report, shows=shows))


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("columns", [20, 40, 60, 80, 120, 200])
def test_no_line_is_longer_than_the_terminal(name: str, columns: int) -> None:
    text = shown(name, columns=columns)
    # A whole figure and a name need some room.
    if columns >= 40 or name.split()[0] in ("explain", "tune"):
        assert max(map(cell_len, text.splitlines())) <= columns
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", REPORTS)
def test_an_ascii_terminal_gets_signs_that_it_has(name: str) -> None:
    text = shown(name, encoding="ascii")
    assert text.isascii()
    # Other letters of names may become "?".
    if "hostile" not in name:
        assert "?" not in text


def check_named(text: str) -> CheckReport:
    report = reports.cpu_wins()
    finding = replace(report.findings[0], file=text, title=text, fix=text)
    return replace(
        report,
        target=text,
        host=replace(report.host, name=text),
        verdict=replace(report.verdict, because=text),
        findings=(finding,),
        caveats=(Caveat(code=text, message=text),),
    )


def tune_named(text: str) -> TuneReport:
    report = tunings.faster()
    machine = Machine(
        processor=text, num_cores=2, gpu=text, torch_version=text, python_version=text,
        breakeven_version=text,
    )  # fmt: skip
    trials = (replace(one, candidate=text, title=text, reason=text) for one in report.trials)
    return replace(
        report,
        target=text,
        machine=machine,
        trials=tuple(trials),
        code_change=CodeChange(file=text, line=3, diff=f"--- {text}\n+++ {text}\n+{text}\n"),
        caveats=(Caveat(code=text, message=text),),
    )


def systems_named(text: str) -> SystemsReport:
    claim = replace(systems.claim(), claim=text, published=text, ours=text, because=text)
    row = TableRow(source=RowSource.PUBLISHED, cells=(text, None, None, None, None))
    system = systems.system(
        text,
        title=text,
        published_in=text,
        script=text,
        tables=(replace(systems.table(), title=text, note=text, rows=(row,)),),
        claims=(claim,),
        caveats=(Caveat(code=text, message=text),),
    )
    return SystemsReport(schema_version=2, systems=(system,), failures={text: text})


NAMED: dict[str, Callable[[str], Any]] = {
    "check": check_named,
    "explain": partial(explanations.with_names, explanations.launch_bound()),
    "trainer": partial(explanations.with_names, explanations.trainer()),
    "tune": tune_named,
    "workloads": systems_named,
}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("columns", [40, 80])
def test_hostile_names_cannot_steer_a_terminal(kind: str, text: str, columns: int) -> None:
    report = NAMED[kind](text)
    shows = partial(show, shows_evidence=True) if kind in ("explain", "trainer") else show
    said = terminal.shown(report, columns, shows=shows)
    assert said.replace("\n", "").isprintable()
    assert max(map(cell_len, said.splitlines())) <= columns
    assert len(said) < 60_000
    if text.startswith("[bold]"):  # shown as it is, not taken for markup
        wide = terminal.shown(report, 200, force_terminal=True, color_system=None)
        assert "[bold]" in wide


def test_text_of_a_table_cannot_steer_a_terminal(tmp_path: Path) -> None:
    rows = [{"workload": "a\x1b[31mb", "source": "[bold]x", "device": "\u202eabacus"}, {}]
    text = terminal.shown(report_of(tmp_path / "t.csv", rows, {}))
    assert text.replace("\n", "").isprintable()
    assert "[bold]x" in text
    assert "\\u202e" in text


def test_colours_only_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;36m" in shown("check cpu_wins", force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;36m" not in shown("check cpu_wins", force_terminal=True)


def test_columns_of_the_environment_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    file = io.StringIO()
    show(reports.cpu_wins(), Console(file=file))
    assert 50 < max(map(cell_len, file.getvalue().splitlines())) <= 60

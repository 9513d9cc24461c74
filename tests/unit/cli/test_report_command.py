"""``breakeven report``: a stored run shown again, as a page or as a chart."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from breakeven.cli import main
from breakeven.errors import StoredDataError, UsageError
from breakeven.report import (
    chart_document,
    compare_reports,
    read_document,
    read_report,
    report_command,
    to_json,
)
from breakeven.verdict import ProgramFacts, program_of
from factories import reports as made_up
from factories import sweeps, systems, tunings
from factories.pages import Reader
from unit.studies.test_cost import stored

CHECK, SWEEP, SYSTEMS = made_up.cpu_wins(), sweeps.widths(), systems.report()
DOCUMENTS = {
    "check": to_json(CHECK),
    "sweep": to_json(SWEEP),
    "workloads": to_json(SYSTEMS),
}
REPORTS: dict[str, Any] = {"check": CHECK, "sweep": SWEEP, "workloads": SYSTEMS}


@pytest.fixture(params=DOCUMENTS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def run_file(kind: str, tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_bytes(DOCUMENTS[kind])
    return path


def test_documents_are_told_apart(kind: str, run_file: Path) -> None:
    report = read_document(run_file)
    assert report == REPORTS[kind]
    assert report_command(report) == kind


def test_a_check_of_the_first_version_is_read(tmp_path: Path) -> None:
    document = json.loads(DOCUMENTS["check"])
    del document["program"]
    document["schema_version"] = 1
    for result in document["results"]:
        del result["is_disturbed"], result["setting"]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    assert read_report(path) == replace(CHECK, schema_version=1)


def test_only_a_check_is_a_check(kind: str, run_file: Path) -> None:
    if kind == "check":
        assert read_report(run_file) == CHECK
        return
    with pytest.raises(StoredDataError, match=f"is a report of breakeven {kind}, not of"):
        read_report(run_file)


DAMAGES: tuple[tuple[Callable[[bytes], bytes], str], ...] = (
    (lambda document: document[: len(document) // 2], "is cut off"),
    (lambda _: b" \n", "is cut off: it is empty"),
    (lambda document: document.replace(b'": ', b'"= '), "is not JSON"),
    (
        lambda document: re.sub(rb'(schema_version": )[23]', rb"\g<1>9", document),
        "reads version [23]",
    ),
    (lambda document: document.replace(b'"host"', b'"hots"'), "was edited or damaged.*host"),
    (lambda document: document.replace(b'"predicted"', b'"guessed"'), "edited or damaged"),
    (lambda document: document.replace(b"examples/", b"\xff\xfe"), "is not JSON|damaged"),
    (
        lambda document: re.sub(rb'"axes": \[.*?\n  \]', b'"axes": []', document, flags=re.S),
        "axis",
    ),
    (
        lambda document: re.sub(rb'"results": \[.*?\n  \]', b'"results": []', document, flags=re.S),
        "without a device",
    ),
    (lambda document: document.replace(b'"width": 64', b'"length": 64', 1), "value of width"),
    (lambda document: document.replace(b'"cells": [', b'"cells": [null,'), "a row of 6 cells"),
    # An interval that does not hold its time, and a time that nothing takes.
    (lambda document: re.sub(rb'"low_ns": [0-9.e+]+', b'"low_ns": 0.0', document), "interval"),
    (lambda document: re.sub(rb'"high_ns": [0-9.e+]+', b'"high_ns": 1e19', document), "interval"),
    (
        lambda document: re.sub(
            rb'("speedup": [0-9.]+,\s+"low": )[0-9.]+', rb"\g<1>99.0", document
        ),
        "a ratio of .* with an interval from 99 to",
    ),
    (lambda _: b'{"schema_version": 1, "rows": []}', "is no report of breakeven"),
    (lambda _: to_json(compare_reports(CHECK, CHECK)), "is no report of breakeven: it has none"),
    (lambda _: b'{"systems": []}', "is no report of breakeven.*schema_version"),
    (lambda _: b"[" * 100_000, "is cut off|is not JSON|is no report"),
    (lambda _: b'{"schema_version": 1, "axes": ' + b"[" * 100_000, "is cut off|is not JSON"),
)
# Not every kind of document has each part that is damaged.
DAMAGED = [
    (damage(document), message)
    for damage, message in DAMAGES
    for document in DOCUMENTS.values()
    if damage(document) != document
]


@pytest.mark.parametrize(("document", "message"), DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_documents_are_refused_with_the_reason(
    document: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(document)
    with pytest.raises(StoredDataError, match=message):
        read_document(path)


@pytest.mark.parametrize("high", [0.01, 3.0])
def test_the_interval_of_the_training_holds_its_ratio(high: float, tmp_path: Path) -> None:
    program = program_of(CHECK.verdict, CHECK.results, ProgramFacts())
    path = tmp_path / "run.json"
    path.write_bytes(to_json(replace(CHECK, program=program)))
    assert read_report(path).program == program
    path.write_bytes(to_json(replace(CHECK, program=replace(program, low=2.9, high=high))))
    with pytest.raises(StoredDataError, match=f"interval from 2.9 to {high:g}"):
        read_document(path)


def test_the_stored_run_is_shown_as_it_was(
    kind: str, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run_file)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    first = {
        "check": "Train this on your CPU: 2.3×",
        "sweep": "A GPU pays off from width 130 on",
        "workloads": "rnn-stream: an RNN over a stream of frames",
    }
    assert captured.out.startswith(first[kind])
    assert "-o report.html" in captured.out


def test_a_page_is_written_and_not_replaced(
    kind: str, run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    command = ["report", str(run_file), "-o", str(page)]
    if kind == "workloads":
        assert main(command) == 2
        assert "is not written as a page" in capsys.readouterr().err
        return
    assert main(command) == 0
    assert capsys.readouterr().out == ""
    assert page.read_bytes().startswith(b"<!doctype html>")
    page.write_text("mine")
    assert main(command) == 3
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert page.read_text() == "mine"
    assert main([*command, "--force"]) == 0
    assert page.read_text() != "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run.json"]


def test_what_a_tuning_prints_is_shown_again_and_made_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tunings.faster()
    path, page = tmp_path / "run.json", tmp_path / "run.html"
    path.write_bytes(to_json(report))
    again = read_document(path)
    assert to_json(again) == path.read_bytes()
    assert report_command(again) == "tune"
    assert main(["compare", str(path), str(path)]) == 3
    assert "runs of breakeven tune are not compared" in capsys.readouterr().err
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out.startswith("1.84× faster")
    assert main(["report", str(path), "-o", str(page)]) == 0
    Reader(page.read_bytes())
    with pytest.raises(UsageError, match="has no chart"):
        chart_document(report, ".svg")


def test_charts_are_written(kind: str, run_file: Path, tmp_path: Path) -> None:
    chart = tmp_path / "chart.svg"
    exit_code = main(["report", str(run_file), "-o", str(chart)])
    assert exit_code == (2 if kind == "workloads" else 0)
    assert chart.exists() == (exit_code == 0)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["-o", "report.pdf"], 2, ".html or .svg"),
        (["-o", "report"], 2, "a file without suffix"),
        (["--force"], 2, "--force is about -o FILE"),
        (["-o", "absent/report.html"], 3, "there is no folder"),
        (["extra"], 2, "unrecognized arguments: extra"),
        (["--", "extra"], 2, "report takes nothing after --"),
    ],
)
def test_wrong_command_lines(
    arguments: list[str],
    exit_code: int,
    message: str,
    run_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(run_file.parent)
    assert main(["report", run_file.name, *arguments]) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert [path.name for path in run_file.parent.iterdir()] == ["run.json"]


def test_pages_need_no_torch(tmp_path: Path) -> None:
    run_file = tmp_path / "run.json"
    run_file.write_bytes(DOCUMENTS["sweep"])
    program = (
        "import sys; from breakeven.cli import main; "
        "code = main(sys.argv[1:]); "
        "print(code, 'torch' in sys.modules)"
    )
    command = ["report", str(run_file), "-o", str(tmp_path / "page.html")]
    done = subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0 False\n"


def test_a_card_is_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, card = str(stored(tmp_path)), tmp_path / "card.md"
    assert main(["report", run, "--card", "--steps", "1000"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("**")
    assert "| this machine |" in shown
    assert main(["report", run, "--card", "--steps", "1000", "-o", str(card)]) == 0
    assert card.read_text(encoding="utf-8") == shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--card"], "the length of the training is unknown"),
        (["--card", "--steps", "5", "-o", "card.pdf"], "no card is written as card.pdf"),
        (["--card", "--format", "sarif"], "not allowed with argument --card"),
        (["--steps", "5"], "--steps is the length of the training for --card"),
        (["--card", "--steps", "0"], "is not a whole number above 0"),
    ],
)
def test_wrong_options_of_a_card(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(stored(tmp_path)), *options]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_card_needs_a_recorded_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.json"
    path.write_bytes(DOCUMENTS["sweep"])
    assert main(["report", str(path), "--card", "--steps", "5"]) == 3
    assert "which records no step" in capsys.readouterr().err

"""Findings for code hosts: SARIF, and GitHub's commands in a log."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from breakeven.cli import main
from breakeven.report import (
    CheckReport,
    all_rule_pages,
    finding_annotations,
    to_json,
)
from breakeven.simulate import Finding, Severity
from factories import explanations, sweeps
from factories import reports as made_up

CHECK = made_up.cpu_wins()
COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the current folder one of a git repository, and return the repository."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "training").mkdir()
    monkeypatch.chdir(tmp_path / "training")
    return tmp_path


def with_findings(*findings: Finding, **changes: Any) -> CheckReport:
    return replace(CHECK, findings=findings, **changes)


def finding(**changes: Any) -> Finding:
    return replace(CHECK.findings[0], **changes)


def sarif_run(report: Any) -> Any:
    log = json.loads(finding_annotations(report, "sarif"))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    return run


def commands(report: Any) -> list[tuple[str, dict[str, str], str]]:
    """Return level, properties and message of each command, as GitHub decodes them."""
    found: list[tuple[str, dict[str, str], str]] = []
    for line in finding_annotations(report, "github").decode().split("\n")[:-1]:
        command = COMMAND.fullmatch(line)
        assert command, line
        pairs = (pair.split("=", 1) for pair in command[2].split(","))
        found.append((command[1], {name: _decoded(text) for name, text in pairs}, command[3]))
    return [(level, properties, _decoded(text)) for level, properties, text in found]


def _decoded(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_a_finding_is_a_sarif_result_at_its_line() -> None:
    first, second = sarif_run(CHECK)["results"]
    assert first == {
        "ruleId": "SYNC001",
        "level": first["level"],
        "message": {
            "text": "loss.item() makes the host wait for the GPU in every step. The fix saves 24 % "
            "of the step. Fix: add the losses up on the GPU (total += loss.detach()), and read the "
            "sum once per epoch"
        },
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {
                        "uri": "training/examples/rnn_stream.py",
                        "uriBaseId": "%SRCROOT%",
                    },
                    "region": {"startLine": 61},
                }
            }
        ],
    }
    assert second["ruleId"] == "OPT002"


def test_rules_of_a_sarif_run_come_from_their_pages() -> None:
    driver = sarif_run(CHECK)["tool"]["driver"]
    pages = {page.code: page for page in all_rule_pages()}
    assert [rule["id"] for rule in driver["rules"]] == ["OPT002", "SYNC001"]
    for rule in driver["rules"]:
        page = pages[rule["id"]]
        assert rule["name"] == page.cause
        assert rule["shortDescription"]["text"] == page.plain_title
        assert rule["help"]["markdown"] == page.page
        assert f"## What it does\n\n{rule['fullDescription']['text']}" in page.page


def test_a_finding_in_a_notebook_is_at_its_file_and_names_the_cell() -> None:
    report = with_findings(finding(file="/a/train.ipynb", line=3002))
    (result,) = sarif_run(report)["results"]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}
    assert result["message"]["text"].startswith("In cell 3, line 2: ")
    ((_, properties, text),) = commands(report)
    assert "line" not in properties
    assert text.startswith("In cell 3, line 2: ")


@pytest.mark.parametrize(
    ("severity", "level", "command"),
    [
        (Severity.ERROR, "error", "error"),
        (Severity.HIGH, "warning", "warning"),
        (Severity.MEDIUM, "warning", "warning"),
        (Severity.LOW, "note", "notice"),
        (Severity.INFO, "note", "notice"),
    ],
)
def test_levels_follow_the_severity(severity: Severity, level: str, command: str) -> None:
    report = with_findings(finding(severity=severity))
    assert [one["level"] for one in sarif_run(report)["results"]] == [level]
    assert [one[0] for one in commands(report)] == [command]


def test_a_finding_is_a_command_at_its_line() -> None:
    report = with_findings(finding(severity=Severity.HIGH))
    assert finding_annotations(report, "github").decode() == (
        "::warning file=training/examples/rnn_stream.py,line=61,title=SYNC001::loss.item() makes "
        "the host wait for the GPU in every step. The fix saves 24 %25 of the step. Fix: add the "
        "losses up on the GPU (total += loss.detach()), and read the sum once per epoch\n"
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(title=st.text(), file=st.text(st.characters(exclude_characters="/\0"), min_size=1))
def test_no_text_of_a_finding_becomes_another_command(title: str, file: str) -> None:
    report = with_findings(finding(title=title, file=f"{file}.py", gain_fraction=0.0, fix="it"))
    ((_, properties, message),) = commands(report)
    assert set(properties) == {"file", "line", "title"}
    assert message.endswith(". Fix: it")
    assert message.isprintable()
    (result,) = sarif_run(report)["results"]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert re.fullmatch(r"[A-Za-z0-9/._~%-]+", place)


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("{repository}/training/train.py", "training/train.py"),
        ("../shared/loop.py", "shared/loop.py"),
        ("{repository}/../library.py", "../library.py"),
    ],
)
def test_paths_are_relative_to_the_repository(file: str, place: str, repository: Path) -> None:
    report = with_findings(finding(file=file.format(repository=repository)))
    assert [one[1]["file"] for one in commands(report)] == [place]


def test_without_a_repository_paths_are_relative_to_the_current_folder(repository: Path) -> None:
    (repository / ".git").rmdir()
    report = with_findings(finding(file="train.py"))
    assert [one[1]["file"] for one in commands(report)] == ["train.py"]


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("train.py", "training/train.py"),
        ("train.py:one_step", "training/train.py"),
        ("deep.train", None),
    ],
)
def test_a_finding_without_a_line_is_at_the_script(target: str, place: str | None) -> None:
    report = with_findings(finding(file=None, line=None), target=target)
    ((_, properties, _),) = commands(report)
    assert properties.get("file") == place
    assert "line" not in properties
    (result,) = sarif_run(report)["results"]
    assert [
        (one["physicalLocation"]["artifactLocation"]["uri"], one["physicalLocation"]["region"])
        for one in result["locations"]
    ] == ([] if place is None else [(place, {"startLine": 1})])


def test_no_findings_are_an_empty_run_and_an_empty_log() -> None:
    assert sarif_run(with_findings())["results"] == []
    assert sarif_run(with_findings())["tool"]["driver"]["rules"] == []
    assert finding_annotations(with_findings(), "github") == b""


def test_explanations_have_findings_too() -> None:
    report = explanations.launch_bound()
    assert len(sarif_run(report)["results"]) == len(report.findings) > 0


def test_the_command_writes_to_stdout_or_to_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_file, sarif_file = tmp_path / "run.json", tmp_path / "breakeven.sarif"
    run_file.write_bytes(to_json(CHECK))
    assert main(["report", str(run_file), "--format", "github"]) == 0
    assert capsys.readouterr().out.encode() == finding_annotations(CHECK, "github")
    command = ["report", str(run_file), "--format", "sarif", "-o", str(sarif_file)]
    assert main(command) == 0
    assert sarif_file.read_bytes() == finding_annotations(CHECK, "sarif")
    assert main(command) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "is not overwritten" in captured.err


def test_a_run_without_findings_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_file = tmp_path / "run.json"
    run_file.write_bytes(to_json(sweeps.widths()))
    assert main(["report", str(run_file), "--format", "sarif"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a run of breakeven sweep has no findings" in captured.err

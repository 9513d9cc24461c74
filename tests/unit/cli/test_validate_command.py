"""`breakeven validate`: options, what goes where, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import breakeven.validate
from breakeven.cli import main
from factories.accuracy import FakePredictor, write_table


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> FakePredictor:
    """Return what stands in for the calibration that ships."""
    fake = FakePredictor(factor=1.1)
    monkeypatch.setattr(breakeven.validate, "ShippedPredictor", lambda progress: fake)
    return fake


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(write_table(tmp_path / "steps.csv", {}, {"device": "V100", "value_ms": "50"}))


def test_answer_on_stdout_progress_on_stderr(
    asked: FakePredictor, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", table]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("2 rows predicted: error 10 % median; 90 %")
    assert captured.out.rstrip().endswith("Every row as JSON: --json, or -o accuracy.json")
    assert captured.err.splitlines() == [f"reading {table}", "predicting 2 rows"]
    assert asked.calls == [("a", "b")]


def test_rows_of_cpus_are_listed_with_a_reason(
    asked: FakePredictor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "device": "EPYC 7763", "workload": "breakeven:mlp?width=16", "precision": "fp32",
        "phase": "inference", "optimizer": "none", "h2d": "none",
    }  # fmt: skip
    table = str(write_table(tmp_path / "steps.csv", row, {}))
    assert main(["validate", table, "--json", "-q"]) == 0
    first, _ = json.loads(capsys.readouterr().out)["rows"]
    assert first["predicted_ms"] is None
    assert first["reason"] == "of a table, only steps on GPUs are predicted"


def test_output_is_written_and_not_overwritten(
    asked: FakePredictor, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "a.json"
    command = ["validate", table, "-q", "-o", str(output)]
    assert main(command) == 0
    assert json.loads(output.read_bytes())["rows"][1]["predicted_ms"] == pytest.approx(55)
    assert f"EveryrowasJSON:{output}" in "".join(capsys.readouterr().out.split())
    assert main(command) == 3
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert len(asked.calls) == 1, "refused before the work"
    assert main([*command, "--force"]) == 0


def test_only_some_rows(
    asked: FakePredictor, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", table, "-q", "--json", "--only", "device=v100"]) == 0
    assert [row["case_id"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["b"]
    assert main(["validate", table, "-q", "--only", "colour=red"]) == 2
    assert "“colour=red” is no condition KEY=VALUE" in capsys.readouterr().err
    assert main(["validate", table, "-q", "--only", "device=K80"]) == 3
    assert "no row has device “K80”" in capsys.readouterr().err


def test_a_bad_cell_is_an_error_with_its_line(
    asked: FakePredictor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_table(tmp_path / "t.csv", {"phase": "training"})
    assert main(["validate", str(path), "-q", "--json"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"error: {path}:2: column phase: “training”" in captured.err
    assert "hint: allowed: train, forward_backward" in captured.err


def test_an_unknown_device_is_no_error(
    asked: FakePredictor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_table(tmp_path / "t.csv", {"device": "abacus"}, {})
    assert main(["validate", str(path), "-q"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 of 2 rows predicted:")
    assert "1× unknown-device" in out


def test_a_table_of_which_nothing_is_predicted_is_shown_and_no_success(
    asked: FakePredictor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_table(tmp_path / "t.csv", {"device": "abacus"})
    assert main(["validate", str(path), "-q", "--json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rows"][0]["reason_code"] == "unknown-device"
    assert captured.err.startswith("error: no row could be predicted\n")


@pytest.mark.parametrize("options", [["--leave-out", "gpu"], ["--force"], ["--threads"]])
def test_command_lines_that_make_no_sense(
    options: list[str], asked: FakePredictor, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", table, *options]) == 2
    assert capsys.readouterr().out == ""
    assert asked.calls == []

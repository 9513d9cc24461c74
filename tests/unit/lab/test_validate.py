"""`python -m lab.validate`: what is left out, budgets, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from breakeven.report import LeaveOut
from factories.accuracy import FakePredictor, write_table
from lab import validate
from lab.validate import main


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[LeaveOut]:
    """Return the list of the protocols that predictors were asked for."""
    protocols: list[LeaveOut] = []

    def predictor_for(protocol: LeaveOut, *, progress: object) -> FakePredictor:
        protocols.append(protocol)
        return FakePredictor(factor=1.1)

    monkeypatch.setattr(validate, "predictor_for", predictor_for)
    return protocols


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(write_table(tmp_path / "steps.csv", {}, {"device": "V100", "value_ms": "50"}))


def budgets(tmp_path: Path, text: str) -> str:
    path = tmp_path / "budgets.toml"
    path.write_text(text)
    return str(path)


def test_a_protocol_is_predicted_shown_and_written(
    asked: list[LeaveOut], table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "a.json"
    command = [table, "--leave-out", "gpu", "--only", "device=T4", "-q", "-o", str(output)]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("1 row predicted: error 10 % median; 90 %")
    document = json.loads(output.read_bytes())
    assert (document["protocol"], len(document["rows"])) == ("gpu", 1)
    assert main(command) == 3
    assert asked == [LeaveOut.GPU], "refused before the work"


def test_exceeded_budgets_end_with_1_and_are_named(
    asked: list[LeaveOut], table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = budgets(tmp_path, '[[budget]]\nby = "split:shipped"\nmedian = 0.05\n')
    assert main([table, "-q", "--budget", path]) == 1
    assert capsys.readouterr().err == (
        "over budget: split:shipped: median error 10 %, at most 5 % allowed\n"
    )


def test_kept_budgets_are_confirmed(
    asked: list[LeaveOut], table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = budgets(tmp_path, '[[budget]]\nby = "split:new-model"\nmedian = 0.2\n')
    assert main([table, "-q", "--leave-out", "model", "--budget", path]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"within 1 budget of {path}"


def test_a_bad_budget_file_is_told_before_the_work(
    asked: list[LeaveOut], table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = budgets(tmp_path, '[[budget]]\nby = "all:all"\nmedain = 1')
    assert main([table, "--budget", path]) == 3
    assert "unknown field `medain`" in capsys.readouterr().err
    assert asked == []


def test_a_table_of_which_nothing_is_predicted_is_no_success(
    asked: list[LeaveOut], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_table(tmp_path / "t.csv", {"device": "abacus"})
    assert main([str(path), "-q"]) == 3
    assert "no row could be predicted" in capsys.readouterr().err

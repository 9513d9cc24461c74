"""`breakeven validate`: options, what goes where, exit codes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import breakeven.cost
import breakeven.validate
from breakeven.cli import main
from breakeven.verdict import LeaveOut
from factories.accuracy import FakePredictor, era_of, prediction, write_table
from factories.loaded_scripts import load_script

DOCS = Path(__file__).parents[3] / "docs"


class FakeFactory:
    """Stands in for what makes predictors: records the protocols that it was asked for."""

    def __init__(self) -> None:
        self.protocols: list[LeaveOut] = []
        self.predictor = FakePredictor(factor=1.1)

    def __call__(self, protocol: LeaveOut, *, progress: Any) -> FakePredictor:
        self.protocols.append(protocol)
        progress.detail("made up")
        return self.predictor


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> FakeFactory:
    fake = FakeFactory()
    monkeypatch.setattr(breakeven.validate, "predictor_for", fake, raising=False)
    monkeypatch.setattr(breakeven.cost, "era_of", era_of, raising=False)
    return fake


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(write_table(tmp_path / "steps.csv", {}, {"device": "V100", "value_ms": "50"}))


def test_golden_help(
    check_golden: Callable[[str, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["validate", "--help"]) == 0
    check_golden("help_validate.txt", capsys.readouterr().out)


def test_answer_on_stdout_progress_on_stderr(
    factory: FakeFactory, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", table]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("2 rows predicted: error 10 % median; 90 %")
    assert captured.out.rstrip().endswith("Every row as JSON: --json, or -o accuracy.json")
    assert captured.err.splitlines() == [f"reading {table}", "predicting 2 rows"]
    assert factory.protocols == [LeaveOut.NONE]


def test_json_is_one_document(
    factory: FakeFactory, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", table, "--leave-out", "gpu", "--json", "-q"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["protocol"] == "gpu"
    assert [row["case_id"] for row in document["rows"]] == ["a", "b"]
    assert captured.err == ""
    assert factory.protocols == [LeaveOut.GPU]


def test_cpus_are_measured_where_that_is_asked_for(
    factory: FakeFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "device": "EPYC 7763", "workload": "breakeven:mlp?width=16", "precision": "fp32",
        "phase": "inference", "optimizer": "none", "h2d": "none",
    }  # fmt: skip
    table = str(write_table(tmp_path / "steps.csv", row, {}))
    assert main(["validate", table, "--json", "-q"]) == 0
    first, _ = json.loads(capsys.readouterr().out)["rows"]
    assert first["predicted_ms"] is None
    assert "--measure-cpus" in first["reason"]

    assert main(["validate", table, "--measure-cpus", "--json", "-q"]) == 0
    first, _ = json.loads(capsys.readouterr().out)["rows"]
    assert first["device"] == "EPYC 7763"
    assert 0 < first["low_ms"] < first["predicted_ms"] < first["high_ms"]


def test_cpus_are_not_left_out(
    factory: FakeFactory, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", table, "--measure-cpus", "--leave-out", "gpu"]) == 2
    assert "--measure-cpus and --leave-out do not go together" in capsys.readouterr().err
    assert factory.protocols == []


def test_output_is_written_and_not_overwritten(
    factory: FakeFactory, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "a.json"
    command = ["validate", table, "-q", "-o", str(output)]
    assert main(command) == 0
    assert json.loads(output.read_bytes())["rows"][1]["predicted_ms"] == pytest.approx(55)
    assert f"EveryrowasJSON:{output}" in "".join(capsys.readouterr().out.split())
    assert main(command) == 3
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert factory.protocols == [LeaveOut.NONE], "refused before the work"
    assert main([*command, "--force"]) == 0


def test_only_some_rows(
    factory: FakeFactory, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", table, "-q", "--json", "--only", "device=v100"]) == 0
    assert [row["case_id"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["b"]
    assert main(["validate", table, "-q", "--only", "colour=red"]) == 2
    assert "“colour=red” is no condition KEY=VALUE" in capsys.readouterr().err
    assert main(["validate", table, "-q", "--only", "device=K80"]) == 3
    assert "no row has device “K80”" in capsys.readouterr().err


def test_rows_that_were_fitted_on_lead_to_the_other_protocols(
    factory: FakeFactory, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    factory.predictor.by_case_id = {"a": prediction(100, is_calibrated_on=True)}
    assert main(["validate", table, "-q"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Errors on what is new to the calibration: --leave-out gpu, model or source" in out


def test_a_bad_cell_is_an_error_with_its_line(
    factory: FakeFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_table(tmp_path / "t.csv", {"phase": "training"})
    assert main(["validate", str(path), "-q", "--json"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"error: {path}:2: column phase: “training”" in captured.err
    assert "hint: allowed: train, forward_backward" in captured.err


def test_an_unknown_device_is_no_error(
    factory: FakeFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_table(tmp_path / "t.csv", {"device": "abacus"}, {})
    assert main(["validate", str(path), "-q"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 of 2 rows predicted:")
    assert "1× unknown-device" in out


def test_a_table_of_which_nothing_is_predicted_is_shown_and_no_success(
    factory: FakeFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_table(tmp_path / "t.csv", {"device": "abacus"})
    assert main(["validate", str(path), "-q", "--json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rows"][0]["reason_code"] == "unknown-device"
    assert captured.err.startswith("error: no row could be predicted\n")


@pytest.mark.parametrize("options", [["--leave-out", "host"], ["--force"], ["--threads"]])
def test_command_lines_that_make_no_sense(
    options: list[str], factory: FakeFactory, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", table, *options]) == 2
    assert capsys.readouterr().out == ""
    assert factory.protocols == []


def budgets(tmp_path: Path, median: float) -> str:
    path = tmp_path / "budgets.toml"
    path.write_text(f'[[budget]]\nby = "split:shipped"\nmedian = {median}\n')
    return str(path)


def test_exceeded_budgets_end_with_1_and_are_named(
    factory: FakeFactory, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["validate", table, "-q", "--json", "--budget"]
    assert main([*command, budgets(tmp_path, 0.05)]) == 1
    captured = capsys.readouterr()
    assert captured.err == ("over budget: split:shipped: median error 10 %, at most 5 % allowed\n")
    assert json.loads(captured.out)["schema_version"] == 1


def test_kept_budgets_are_confirmed(
    factory: FakeFactory, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = budgets(tmp_path, 0.2)
    assert main(["validate", table, "--json", "--budget", path]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"within 1 budget of {path}"


def test_a_bad_budget_file_is_told_before_the_work(
    factory: FakeFactory, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text('[[budget]]\nby = "all:all"\nmedain = 1')
    assert main(["validate", table, "--budget", str(path)]) == 3
    assert "unknown field `medain`" in capsys.readouterr().err
    assert factory.protocols == []


def test_report_without_matplotlib_is_refused_before_the_work(
    factory: FakeFactory,
    table: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["validate", table, "--report", str(tmp_path / "accuracy")]) == 3
    assert "hint: pip install 'breakeven[plots]'" in capsys.readouterr().err
    assert factory.protocols == []
    assert not (tmp_path / "accuracy").exists()


def test_report_folder_holds_page_and_plot(
    factory: FakeFactory, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "accuracy"
    command = ["validate", table, "-q", "--leave-out", "model", "--report", str(folder)]
    assert main(command) == 0
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "accuracy-model.svg",
        "accuracy.md",
    ]
    assert "](accuracy-model.svg)" in (folder / "accuracy.md").read_text("utf-8")
    capsys.readouterr()
    assert main(command) == 3
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0


def test_report_folder_that_cannot_be_made(
    factory: FakeFactory, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["validate", table, "--report", f"{table}/x"]) == 3
    assert "cannot make the folder" in capsys.readouterr().err
    assert factory.protocols == []


def test_the_page_of_the_docs_is_written_for_every_protocol(
    factory: FakeFactory, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    script = load_script(DOCS / "accuracy.py", "docs_accuracy")
    monkeypatch.setattr(script, "DOCS", tmp_path)
    assert script.main([table, "--only", "device=T4"]) == 0
    assert sorted(factory.protocols) == sorted(LeaveOut)
    page = (tmp_path / "accuracy.md").read_text("utf-8")
    assert page.startswith("<!-- Written by `python docs/accuracy.py steps.csv --only device=T4`;")
    for protocol in LeaveOut:
        assert (tmp_path / f"accuracy-{protocol}.svg").is_file()
        assert f"](accuracy-{protocol}.svg)" in page
    assert script.main([table, "--only", "nothing"]) == 2

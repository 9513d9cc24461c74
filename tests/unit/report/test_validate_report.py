"""A validation as JSON, and at a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jsonschema
import pytest
from rich.cells import cell_len

from breakeven.errors import Caveat
from breakeven.report import json_schema, show, to_json
from breakeven.report.validate import percent, signed_percent, worst_rows
from breakeven.timing import Estimate, Source
from breakeven.verdict import (
    LeaveOut,
    RowPrediction,
    Unpredictable,
)
from factories import terminal
from factories.accuracy import mixed, prediction, report_of
from factories.terminal import flat

SCHEMA_FILE = Path(__file__).parents[3] / "docs" / "schema" / "validate.schema.json"
REFUSED = Unpredictable(code="unknown-workload", reason="no such model")


shown = partial(terminal.shown, shows=partial(show, hints=("Every row as JSON: --json",)))


def test_golden_at_80_columns(tmp_path: Path, check_golden: Callable[[str, str], None]) -> None:
    check_golden("terminal_validate.txt", shown(mixed(tmp_path / "t.csv")))


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_no_line_is_longer_than_the_terminal(columns: int, tmp_path: Path) -> None:
    lines = shown(mixed(tmp_path / "t.csv"), columns=columns).splitlines()
    assert max(cell_len(line) for line in lines) <= columns


def test_rows_that_were_fitted_on_are_pointed_out(tmp_path: Path) -> None:
    report = report_of(
        tmp_path / "t.csv",
        [{}, {}],
        {"a": prediction(100, is_calibrated_on=True)},
        protocol=LeaveOut.NONE,
    )
    text = flat(shown(report))
    assert "Careful: The calibration has seen 1 row of this table" in text
    assert "the calibration that ships with breakeven predicts every row" in text


def test_a_table_without_any_prediction(tmp_path: Path) -> None:
    report = report_of(tmp_path / "t.csv", [{}, {}], {"a": REFUSED, "b": REFUSED})
    text = shown(report)
    assert text.startswith("None of 2 rows could be predicted.")
    assert "2× unknown-workload  no such model" in text
    assert "furthest off" not in text


def test_no_more_than_twelve_reasons_are_listed(tmp_path: Path) -> None:
    letters = "abcdefghijklmnop"
    outcomes = {
        letter: Unpredictable(code="unknown-workload", reason=f"no model {letter}")
        for letter in letters
    }
    text = flat(shown(report_of(tmp_path / "t.csv", [{}] * 16, outcomes)))
    assert "no model l" in text
    assert "no model m" not in text
    assert "and 4 rows for other reasons: --json" in text


def test_text_of_a_table_cannot_steer_the_terminal(tmp_path: Path) -> None:
    rows = [{"workload": "a\x1b[31mb", "source": "[bold]x", "device": "\u202eabacus"}, {}]
    text = shown(report_of(tmp_path / "t.csv", rows, {}))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]x" in text
    assert "\\u202e" in text


def test_worst_rows_are_those_off_by_the_largest_factor(tmp_path: Path) -> None:
    outcomes = {
        "a": prediction(180),  # 1.8× too slow
        "b": prediction(40),  # 2.5× too fast, though only 60 % off
        "c": prediction(100),
        "d": REFUSED,
    }
    report = report_of(tmp_path / "t.csv", [{}] * 4, outcomes)
    assert [row.case_id for row in worst_rows(report, 2)] == ["b", "a"]
    assert len(worst_rows(report, 10)) == 3


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (None, "-"),
        (0.0, "0 %"),
        (0.0912, "9.1 %"),
        (0.123, "12 %"),
        (0.0034, "0.3 %"),
        (0.9962, "99.6 %"),
        (1.0, "100 %"),
        (2.345, "230 %"),
    ],
)
def test_percentages(fraction: float | None, text: str) -> None:
    assert percent(fraction) == text


def test_signs_of_percentages() -> None:
    biases = (0.12, -0.034, 0.0, None)
    assert [signed_percent(bias) for bias in biases] == ["+12 %", "-3.4 %", "0 %", "-"]


def test_document_has_the_agreed_keys_in_milliseconds(tmp_path: Path) -> None:
    document = json.loads(to_json(mixed(tmp_path / "t.csv")))
    assert document["schema_version"] == 1
    assert document["protocol"] == "gpu"
    first = document["rows"][0]
    assert first["case_id"] == "a"
    assert first["predicted_ms"] == pytest.approx(110)
    assert (first["low_ms"], first["high_ms"]) == (pytest.approx(55), pytest.approx(220))
    assert first["value_ms"] == pytest.approx(100)
    assert first["error_fraction"] == pytest.approx(0.10)
    assert first["caveats"] == []
    assert first["reason"] is None
    assert first["is_covered"] is True
    by_id = {row["case_id"]: row for row in document["rows"]}
    assert set(by_id) == set("abcdefghijkl"), "no row is dropped"
    refused = by_id["k"]
    assert refused["predicted_ms"] is None
    assert refused["error_fraction"] is None
    assert refused["reason"] == "a step on 8 devices is not predicted"
    assert refused["reason_code"] == "many-devices"
    assert refused["is_covered"] is False
    assert by_id["j"]["reason_code"] == "cpu"
    assert document["summary"]["by"]["all"]["all"]["num_rows"] == 12
    assert document["summary"]["by"]["precision"]["fp16"]["num_rows"] == 3


def test_caveats_of_rows_are_in_the_document(tmp_path: Path) -> None:
    caveat = Caveat(code="uncosted-op", message="one op has no cost.")
    estimate = Estimate(value_ns=1e8, low_ns=9e7, high_ns=2e8, source=Source.PREDICTED)
    outcome = RowPrediction(estimate=estimate, caveats=(caveat,))
    report = report_of(tmp_path / "t.csv", [{}], {"a": outcome})
    (row,) = json.loads(to_json(report))["rows"]
    assert row["caveats"] == [{"code": "uncosted-op", "message": "one op has no cost."}]


def test_document_validates_against_the_schema_file(tmp_path: Path) -> None:
    schema = json.loads(SCHEMA_FILE.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    document = json.loads(to_json(mixed(tmp_path / "t.csv")))
    validator.validate(document)
    del document["rows"][0]["reason"]
    assert not validator.is_valid(document)


def test_schema_file_is_the_generated_schema() -> None:
    command = [sys.executable, "-m", "breakeven.report.schema", "validate"]
    generated = subprocess.run(command, capture_output=True, check=True).stdout
    assert SCHEMA_FILE.read_bytes() == generated, "run the command in breakeven/report/schema.py"


def test_schema_describes_every_key() -> None:
    definitions = json_schema("validate")["$defs"]
    for name in ("ValidationRow", "AccuracySummary", "ValidationSummary"):
        for key, value in definitions[name]["properties"].items():
            assert value.get("description"), f"{name}.{key}"

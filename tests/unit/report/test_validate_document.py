"""The document of a validation, and what is stored of it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from breakeven.errors import Caveat
from breakeven.report import RowPrediction, Unpredictable, show, to_json
from breakeven.report.validate import percent, worst_rows
from breakeven.timing import Estimate, Source
from factories import terminal
from factories.accuracy import mixed, prediction, report_of
from factories.terminal import flat

REFUSED = Unpredictable(code="unknown-workload", reason="no such model")

shown = partial(terminal.shown, shows=partial(show, hints=("Every row as JSON: --json",)))


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

"""Errors, coverage, right devices and groups, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.report import LeaveOut, RowPrediction, Unpredictable
from breakeven.validate import GROUPINGS, RowFilter, validate_table
from breakeven.verdict import Bound
from factories.accuracy import FakePredictor, mixed, prediction, report_of, write_table

REFUSED = Unpredictable(code="unknown-workload", reason="no such model")


def test_errors_of_four_rows(tmp_path: Path) -> None:
    # Errors of 10, 50, 20 and 0 % and one row without a prediction.
    report = report_of(
        tmp_path / "t.csv",
        [{"value_ms": "100"}] * 5,
        {
            "a": prediction(110, low_ms=90, high_ms=120),
            "b": prediction(50, low_ms=40, high_ms=60),
            "c": prediction(80, low_ms=80, high_ms=100),
            "d": prediction(100, low_ms=50, high_ms=200),
            "e": REFUSED,
        },
    )
    summary = report.overall
    assert (summary.num_rows, summary.num_unpredicted, summary.num_calibrated_on) == (5, 1, 0)
    assert summary.median_error_fraction == pytest.approx(0.15)
    assert summary.mean_error_fraction == pytest.approx(0.20)
    # Linear between the third and the fourth of 0, 10, 20, 50 %: 0.9 × 3 = 2.7.
    assert summary.p90_error_fraction == pytest.approx(0.41)
    assert summary.bias_fraction == pytest.approx((1.1 * 0.5 * 0.8 * 1.0) ** 0.25 - 1)
    # a, c (at its end) and d hold 100 ms; b does not, and e counts as missed.
    assert summary.coverage_fraction == pytest.approx(3 / 5)
    # 120/90, 60/40, 100/80 and 200/50.
    assert summary.median_interval_ratio == pytest.approx((4 / 3 + 1.5) / 2)
    assert [row.error_fraction for row in report.rows[:2]] == pytest.approx([0.1, -0.5])
    assert report.rows[4].error_fraction is None


def test_a_group_without_predictions_has_no_errors(tmp_path: Path) -> None:
    summary = report_of(tmp_path / "t.csv", [{}], {"a": REFUSED}).overall
    assert summary.median_error_fraction is None
    assert summary.p90_error_fraction is None
    assert summary.bias_fraction is None
    assert summary.median_interval_ratio is None
    assert summary.coverage_fraction == 0.0
    assert summary.right_device_fraction is None


def test_right_device_of_pairs_that_differ_in_the_device_alone(tmp_path: Path) -> None:
    rows = [
        {"value_ms": "100", "device": "T4"},
        {"value_ms": "50", "device": "V100"},
        {"value_ms": "45", "device": "P100"},  # a tie with the V100: 1.11
        {"value_ms": "10", "device": "A100", "batch_size": "64"},  # another step
        {"value_ms": "200", "device": "T4"},  # the T4 again: no pair with itself
    ]
    outcomes: dict[str, RowPrediction | Unpredictable] = {
        "a": prediction(60),
        "b": prediction(70),  # slower than the T4's 60: wrong; faster than its 210: right
        "c": prediction(40),
        "d": prediction(1),
        "e": prediction(210),
    }
    summary = report_of(tmp_path / "t.csv", rows, outcomes).overall
    # (T4 100, V100), (T4 100, P100), (V100, T4 200), (P100, T4 200): all but the first are right.
    assert (summary.num_pairs, summary.num_pairs_unpredicted) == (4, 0)
    assert summary.right_device_fraction == pytest.approx(3 / 4)


def test_a_predicted_tie_is_no_right_device(tmp_path: Path) -> None:
    rows = [{"value_ms": "100"}, {"value_ms": "50", "device": "V100"}]
    outcomes: dict[str, RowPrediction | Unpredictable] = {"a": prediction(70), "b": prediction(70)}
    assert report_of(tmp_path / "t.csv", rows, outcomes).overall.right_device_fraction == 0.0


def test_pairs_with_an_unpredicted_row_are_counted_apart(tmp_path: Path) -> None:
    rows = [{"value_ms": "100"}, {"value_ms": "50", "device": "V100"}, {"device": "CPU X"}]
    summary = report_of(tmp_path / "t.csv", rows, {"b": REFUSED}).overall
    # V100 against the T4 and against the CPU; T4 and CPU both take 100 ms: a tie.
    assert (summary.num_pairs, summary.num_pairs_unpredicted) == (0, 2)
    assert summary.right_device_fraction is None


@pytest.mark.parametrize(
    "column",
    ["source", "workload", "batch_size", "phase", "precision", "optimizer", "h2d", "num_devices"],
)
def test_rows_that_differ_in_more_than_the_device_are_no_pair(column: str, tmp_path: Path) -> None:
    other = {
        "source": "elsewhere",
        "workload": "torchvision:vgg11",
        "batch_size": "33",
        "phase": "forward",
        "precision": "fp16",
        "optimizer": "adam",
        "h2d": "none",
        "num_devices": "2",
    }
    rows = [{"value_ms": "100"}, {"value_ms": "50", "device": "V100", column: other[column]}]
    assert report_of(tmp_path / "t.csv", rows, {}).overall.num_pairs == 0


def test_two_names_of_one_device_are_one_device(tmp_path: Path) -> None:
    rows = [{"value_ms": "100", "device": "Tesla T4"}, {"value_ms": "50", "device": "T4 16GB"}]
    report = report_of(tmp_path / "t.csv", rows, {})
    assert set(report.summary["device"]) == {"T4"}
    assert report.overall.num_pairs == 0


def test_groups_of_a_mixed_table(tmp_path: Path) -> None:
    report = mixed(tmp_path / "t.csv")
    assert tuple(report.summary) == GROUPINGS
    counts = {
        by: {group: summary.num_rows for group, summary in groups.items()}
        for by, groups in report.summary.items()
    }
    assert counts["all"] == {"all": 12}
    assert counts["source"] == {"lab": 10, "old lab": 2}
    assert counts["era"] == {"Torch7 and its contemporaries": 2, "torch 2": 10}
    assert counts["precision"] == {"fp16": 3, "fp32": 9}
    assert counts["regime"] == {"20 ms and over": 9, "under 20 ms": 3}
    assert counts["bound"] == {
        "(not known)": 1,
        "(not predicted)": 2,
        "compute": 4,
        "launch": 3,
        "memory": 2,
    }
    assert counts["architecture"]["Turing"] == 6
    assert counts["num_devices"] == {"1": 11, "8": 1}
    assert counts["split"] == {"new-gpu": 12}
    assert counts["source,phase"] == {"lab,inference": 1, "lab,train": 9, "old lab,train": 2}
    for by, groups in counts.items():
        assert sum(groups.values()) == 12, by


def test_numbers_of_groups_are_sorted_as_numbers(tmp_path: Path) -> None:
    rows = [{"num_devices": count} for count in ("16", "2", "1")]
    report = report_of(tmp_path / "t.csv", rows, {})
    assert list(report.summary["num_devices"]) == ["1", "2", "16"]


@pytest.mark.parametrize(
    ("protocol", "split"),
    [
        (LeaveOut.NONE, "shipped"),
        (LeaveOut.GPU, "new-gpu"),
        (LeaveOut.MODEL, "new-model"),
        (LeaveOut.SOURCE, "new-source"),
    ],
)
def test_split_of_a_row(protocol: LeaveOut, split: str, tmp_path: Path) -> None:
    outcomes: dict[str, RowPrediction | Unpredictable] = {
        "b": prediction(1, is_calibrated_on=True),
        "c": prediction(1, is_calibrated_on=True),
    }
    rows = [{}, {}, {"split": "mine"}, {"split": "mine"}]
    report = report_of(tmp_path / "t.csv", rows, outcomes, protocol=protocol)
    # What the calibration has seen is never counted as validation, whatever the table says.
    assert [row.split for row in report.rows] == [split, "calibrated-on", "calibrated-on", "mine"]
    assert report.overall.num_calibrated_on == 2


def test_a_device_that_is_not_in_the_catalogue_is_told_not_predicted(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", {"device": "abacus"}, {}, {"device": "RTX 30"})
    predictor = FakePredictor()
    report = validate_table(path, predictor=predictor, protocol=LeaveOut.NONE)
    assert predictor.calls == [("b",)]
    first, second, third = (row.outcome for row in report.rows)
    assert isinstance(first, Unpredictable)
    assert first.code == "unknown-device"
    assert "abacus" in first.reason
    assert isinstance(second, RowPrediction)
    assert isinstance(third, Unpredictable)
    assert "could be any of" in third.reason
    assert report.rows[0].device == "abacus"


def test_a_table_of_unknown_devices_needs_no_predictor(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", {"device": "abacus"})
    predictor = FakePredictor()
    report = validate_table(path, predictor=predictor, protocol=LeaveOut.NONE)
    assert predictor.calls == []
    assert report.overall.num_unpredicted == 1


@pytest.mark.parametrize("protocol", list(LeaveOut))
def test_a_fold_learns_from_rows_that_the_filter_leaves_out(
    protocol: LeaveOut, tmp_path: Path
) -> None:
    path = write_table(tmp_path / "t.csv", {}, {"device": "V100"}, {})
    predictor = FakePredictor(factor=1.5)
    report = validate_table(
        path,
        predictor=predictor,
        protocol=protocol,
        only=RowFilter.parse(["device=V100"]),
    )
    assert predictor.calls == [("b",)]
    assert predictor.taught == [("a", "c")]
    assert [row.case_id for row in report.rows] == ["b"]
    assert report.overall.mean_error_fraction == pytest.approx(0.5)
    assert report.table == str(path)
    assert report.protocol is protocol


def test_bound_of_a_prediction_is_kept(tmp_path: Path) -> None:
    outcomes: dict[str, RowPrediction | Unpredictable] = {"a": prediction(1, bound=Bound.SYNC)}
    report = report_of(tmp_path / "t.csv", [{}], outcomes)
    assert set(report.summary["bound"]) == {"sync"}

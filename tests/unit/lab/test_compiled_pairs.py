"""Compiled beside eager: pairs and their ratios, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.report import AccuracyReport, LeaveOut, Unpredictable
from factories.accuracy import prediction, report_of
from lab.accuracy import CompiledPairs, compare_compiled

UNKNOWN = Unpredictable(code="compiled", reason="not predicted")


def report_of_pairs(
    path: Path, *rows: dict[str, str], **predicted_ms: float | None
) -> AccuracyReport:
    outcomes = {
        name: UNKNOWN if value is None else prediction(value)
        for name, value in predicted_ms.items()
    }
    rows = tuple({"compile": "none", **row} for row in rows)
    return report_of(path, rows, outcomes, protocol=LeaveOut.NONE)


def test_ratios_of_pairs(tmp_path: Path) -> None:
    report = report_of_pairs(
        tmp_path / "t.csv",
        {"value_ms": "100"},
        {"value_ms": "50", "compile": "default"},  # predicted 0.55 for 0.5: close
        {"value_ms": "80", "compile": "default", "optimizer": "adam"},  # no eager row
        {"value_ms": "100", "batch_size": "64"},
        {"value_ms": "120", "batch_size": "64", "compile": "default"},  # 0.9 for 1.2: wrong side
        {"value_ms": "90", "compile": "max-autotune"},
        a=100, b=55, c=80, d=200, e=180, f=None,
    )  # fmt: skip
    assert compare_compiled(report.rows) == (
        CompiledPairs(
            mode="default",
            num_pairs=2,
            num_pairs_unpredicted=0,
            close_fraction=0.5,
            right_side_fraction=0.5,
            median_error_fraction=pytest.approx((0.1 + 0.25) / 2),
        ),
        CompiledPairs(mode="max-autotune", num_pairs=0, num_pairs_unpredicted=1),
    )


@pytest.mark.parametrize("column", ["attention", "memory_format", "framework", "device", "h2d"])
def test_rows_that_differ_in_more_than_compilation_are_no_pair(column: str, tmp_path: Path) -> None:
    other = {"attention": "eager", "memory_format": "channels_last", "h2d": "none",
             "framework": "torch 2.4", "device": "V100"}[column]  # fmt: skip
    report = report_of_pairs(tmp_path / "t.csv", {}, {"compile": "default", column: other})
    assert compare_compiled(report.rows) == ()


def test_errors_by_what_today_s_rows_differ_in(tmp_path: Path) -> None:
    report = report_of_pairs(
        tmp_path / "t.csv",
        {"attention": "eager"},
        {"attention": "flash", "workload": "timm:vit_base_patch16_224"},
        {"compile": "default", "memory_format": "channels_last"},
        c=None,
    )
    groups = {by: {name: found.num_rows for name, found in report.summary[by].items()}
              for by in ("attention", "compile", "memory_format", "family")}  # fmt: skip
    assert groups == {
        "attention": {"eager": 1, "sdpa": 1, "(not given)": 1},
        "compile": {"default": 1, "none": 2},
        "memory_format": {"channels_last": 1, "contiguous": 2},
        "family": {"timm:vit": 1, "torchvision:resnet": 2},
    }
    assert report.summary["compile,regime"]["default,20 ms and over"].num_unpredicted == 1

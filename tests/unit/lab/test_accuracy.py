"""The accuracy page: a section for each protocol, its tables and its plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from breakeven.report import AccuracyReport, LeaveOut, Unpredictable
from factories.accuracy import FakePredictor, mixed, prediction, report_of, write_table
from lab import accuracy
from lab.accuracy import scatter_svg, write_page

pytest.importorskip("matplotlib")

REFUSED = Unpredictable(code="unknown-workload", reason="no such model")


def page_of(folder: Path, reports: Sequence[AccuracyReport]) -> str:
    write_page(reports, folder, command="x")
    return (folder / "accuracy.md").read_text("utf-8")


def test_the_page_has_a_section_for_each_protocol(tmp_path: Path) -> None:
    reports = [mixed(tmp_path / "a.csv", LeaveOut.GPU), mixed(tmp_path / "b.csv", LeaveOut.MODEL)]
    page = page_of(tmp_path, reports)
    assert page.startswith("<!-- Written by `x`; do not edit by hand. -->")
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings[:2] == ["## A GPU never calibrated on", "## A new model on a known GPU"]
    assert page.count("![Predicted against measured") == 2
    assert "](accuracy-gpu.svg)" in page
    assert "| lab | 8/10 |" in page
    assert "| by architecture | rows |" in page
    assert "Habitat (Yu et al., USENIX ATC 2021) | 11.8 % mean" in page


def test_compiled_rows_have_a_table(tmp_path: Path) -> None:
    rows = [{}, {"value_ms": "50", "compile": "default"}]
    outcomes = {"a": prediction(100), "b": prediction(55)}
    page = page_of(tmp_path, [report_of(tmp_path / "t.csv", rows, outcomes)])
    assert "### Compiled beside eager" in page
    assert "| default | 1/1 | 100 % | 100 % | 10 % |" in page
    assert "Compiled beside eager" not in page_of(tmp_path, [mixed(tmp_path / "t.csv")])


def test_rows_that_were_fitted_on_and_rows_without_prediction_are_told(tmp_path: Path) -> None:
    outcomes = {"a": prediction(100, is_calibrated_on=True), "b": REFUSED}
    page = page_of(tmp_path, [report_of(tmp_path / "t.csv", [{}, {}], outcomes)])
    assert "**The calibration has seen 1 row of this table" in page
    assert "| 1 | `unknown-workload` | no such model |" in page


def test_tables_of_the_page_have_equally_many_cells(tmp_path: Path) -> None:
    rows = [{"workload": "breakeven:a|b"}, {"device": "V|100"}]
    page = page_of(tmp_path, [report_of(tmp_path / "t.csv", rows, {})]).replace("\\|", "")
    num_cells = 0
    for line in page.splitlines():
        if not line.startswith("|"):
            num_cells = 0
            continue
        num_cells = num_cells or line.count("|")
        assert line.count("|") == num_cells, line


def test_nothing_to_plot_is_no_plot(tmp_path: Path) -> None:
    assert scatter_svg(report_of(tmp_path / "t.csv", [{}], {"a": REFUSED})) is None


def test_plot_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    report = mixed(tmp_path / "t.csv")
    plot = scatter_svg(report)
    assert plot is not None
    assert plot == scatter_svg(report)
    text = plot.decode()
    assert "<dc:date>" not in text
    ElementTree.fromstring(text)
    for label in ("compute-bound (4)", "launch-bound (3)", "bound not known (1)", "±20 %"):
        assert f">{label}<" in text
    # One mark per predicted row and one per entry of the legend.
    marks = text.count("<use xlink:href")
    assert marks >= 10 + 4


def test_the_command_writes_the_page_for_every_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocols: list[LeaveOut] = []

    def predictor_for(protocol: LeaveOut, *, progress: object) -> FakePredictor:
        protocols.append(protocol)
        return FakePredictor(factor=1.1)

    monkeypatch.setattr(accuracy, "predictor_for", predictor_for)
    monkeypatch.setattr(accuracy, "DOCS", tmp_path)
    table = str(write_table(tmp_path / "steps.csv", {}, {"device": "V100", "value_ms": "50"}))
    assert accuracy.main([table, "--only", "device=T4"]) == 0
    assert sorted(protocols) == sorted(LeaveOut)
    page = (tmp_path / "accuracy.md").read_text("utf-8")
    assert page.startswith(
        "<!-- Written by `python -m lab.accuracy steps.csv --only device=T4`; do"
    )
    for protocol in LeaveOut:
        assert (tmp_path / f"accuracy-{protocol}.svg").is_file()
        assert f"](accuracy-{protocol}.svg)" in page
    assert accuracy.main([table, "--only", "nothing"]) == 2

"""A report as an object: shown, saved, tabulated, and in a notebook."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import breakeven
from breakeven.errors import BreakevenError, Caveat, UsageError
from breakeven.report import compare_reports, read_document
from breakeven.studies import cost_run
from factories import explanations, normals, reports, sweeps, systems, tuned
from unit.studies.test_cost import request, stored, summary

ALL: dict[str, Any] = {
    "check": reports.cpu_wins,
    "explain": explanations.launch_bound,
    "sweep": sweeps.batch_sizes,
    "tune": tuned.report,
    "normal": normals.all_paces,
    "compare": lambda: compare_reports(reports.cpu_wins(), reports.gpu_wins()),
    "workloads": systems.report,
}
WITH_TABLE = sorted(ALL.keys() - {"workloads"})
_MAX_CHARACTERS = 200


class Frame:
    """Stands in for a data frame."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> str:
    library = ModuleType("pandas")
    library.DataFrame = Frame  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", library)
    return library.__name__


@pytest.fixture(params=ALL)
def report(request: pytest.FixtureRequest) -> breakeven.Report:
    return breakeven.Report(ALL[request.param]())


def test_its_text_is_the_first_sentence_of_the_answer(report: breakeven.Report) -> None:
    assert 0 < len(repr(report)) <= _MAX_CHARACTERS
    assert "\n" not in repr(report)


def test_text_of_a_check_is_the_verdict() -> None:
    assert repr(breakeven.Report(reports.cpu_wins())).startswith("Train this on your CPU: ")


def test_show_writes_what_the_command_shows(
    report: breakeven.Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report.show()
    shown = capsys.readouterr().out
    assert all(len(line.rstrip()) <= 80 for line in shown.splitlines())
    assert repr(report)[:30] in " ".join(shown.split())


def test_element_needs_no_script_and_styles_only_itself(report: breakeven.Report) -> None:
    element = report._repr_html_()
    assert "<script" not in element
    assert "<html" not in element
    if element.startswith("<pre>"):
        assert "<style" not in element
        return
    (style,) = re.findall(r"<style>(.*?)</style>", element, re.DOTALL)
    # All rules are nested in the class of the element.
    assert re.match(r"\.breakeven-report\.breakeven-report \{", style)
    depth, closed_at = 0, []
    for position, character in enumerate(style.rstrip()):
        depth += (character == "{") - (character == "}")
        if depth == 0 and character == "}":
            closed_at.append(position)
    assert closed_at == [len(style.rstrip()) - 1]
    assert not re.search(r"(?m)^\s*(:root|body|html) \{(?!.*scroll-behavior)", style)


def test_elements_of_two_reports_share_no_id() -> None:
    first, second = (
        set(re.findall(r'\sid="([^"]+)"', breakeven.Report(make())._repr_html_()))
        for make in (sweeps.batch_sizes, sweeps.widths)
    )
    assert first
    assert second
    assert not first & second


def test_kind_without_a_page_is_its_terminal_text() -> None:
    element = breakeven.Report(systems.report())._repr_html_()
    assert element.startswith("<pre>")


def test_element_escapes_text_of_the_user() -> None:
    hostile = replace(reports.cpu_wins(), target="<img src=x onerror=alert(1)>")
    assert "<img" not in breakeven.Report(hostile)._repr_html_()


def test_saved_json_is_read_back(report: breakeven.Report, tmp_path: Path) -> None:
    report.save(tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_bytes())
    assert document["schema_version"] == report.value.schema_version
    if not isinstance(report.value, type(ALL["compare"]())):
        assert read_document(tmp_path / "run.json") == report.value


@pytest.mark.parametrize(("name", "start"), [("a.html", b"<!doctype html>"), ("A.SVG", b"<svg")])
def test_suffix_chooses_the_form(name: str, start: bytes, tmp_path: Path) -> None:
    breakeven.Report(reports.cpu_wins()).save(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_saved_md_is_the_card(tmp_path: Path) -> None:
    run = replace(
        read_document(stored(tmp_path)),
        program=summary(num_steps=700),
        results=reports.cpu_wins().results,
    )
    breakeven.Report(run).save(tmp_path / "card.md")
    card = (tmp_path / "card.md").read_text("utf-8")
    assert "--steps 700" in card
    assert "| device | machine |" in card


def test_a_cost_has_a_table_of_machines(tmp_path: Path, frames: str) -> None:
    cost = cost_run(stored(tmp_path), request())
    rows = breakeven.Report(cost).to_frame().rows
    assert [row["usd_value"] for row in rows] == [row.usd.value for row in cost.rows]


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("check", "a.txt", "no chart is written as .txt"),
        ("check", "a", "no chart is written as a file without suffix"),
        ("check", "a.md", "holds no recorded step"),
        ("tune", "a.md", "a report of breakeven tune has no card"),
        ("normal", "a.svg", "a report of breakeven normal has no chart"),
        ("workloads", "a.html", "is not written as a page"),
    ],
)
def test_form_that_a_report_lacks_writes_nothing(
    kind: str, name: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BreakevenError, match=message):
        breakeven.Report(ALL[kind]()).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_existing_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    report, file = breakeven.Report(reports.cpu_wins()), tmp_path / "run.json"
    file.write_text("mine", "utf-8")
    with pytest.raises(BreakevenError, match="exists and is not overwritten"):
        report.save(file)
    assert file.read_text("utf-8") == "mine"
    report.save(file, force=True)
    assert file.read_text("utf-8").startswith("{")


@pytest.mark.parametrize("kind", WITH_TABLE)
def test_frame_has_one_row_per_row_of_the_main_table(kind: str, frames: str) -> None:
    value = ALL[kind]()
    frame = breakeven.Report(value).to_frame()
    names = {"sweep": "points", "tune": "trials", "normal": "speeds", "compare": "devices"}
    assert len(frame.rows) == len(getattr(value, names.get(kind, "results")))
    assert not any(isinstance(cell, dict) for row in frame.rows for cell in row.values())


def test_frame_keeps_names_units_and_figures(frames: str) -> None:
    value = reports.cpu_wins()
    rows = breakeven.Report(value).to_frame().rows
    assert [row["step_ns"] for row in rows] == [result.step_ns for result in value.results]
    judged = breakeven.Report(normals.all_paces()).to_frame().rows
    assert judged[0]["measured_value_ns"] == normals.all_paces().speeds[0].measured.value_ns


def test_frame_needs_a_table_and_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="a report of breakeven workloads has no table"):
        breakeven.Report(systems.report()).to_frame()
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BreakevenError, match="pandas or polars"):
        breakeven.Report(reports.cpu_wins()).to_frame()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frame_of_the_real_library(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = pytest.importorskip(library)
    if library == "polars":
        monkeypatch.setitem(sys.modules, "pandas", None)
    for kind in WITH_TABLE:
        frame = breakeven.Report(ALL[kind]()).to_frame()
        assert isinstance(frame, real.DataFrame)
        assert len(frame)


def test_only_a_report_is_wrapped() -> None:
    with pytest.raises(UsageError, match="a Caveat is no report"):
        breakeven.Report(Caveat(code="a", message="b"))
    with pytest.raises(UsageError, match="a int is no report"):
        breakeven.Report(3)  # type: ignore[arg-type]


def test_it_is_final() -> None:
    assert getattr(breakeven.Report, "__final__", False)
    assert isinstance(breakeven.Report(reports.cpu_wins()).value, msgspec.Struct)

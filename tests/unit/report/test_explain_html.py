"""The page of an explanation: every figure, nothing from the network, names that stay text."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from test_html_report import HOSTILE

from breakeven.errors import UsageError
from breakeven.report import chart_document
from breakeven.report.chart_svg import SvgTimeline
from breakeven.report.document import Timeline
from breakeven.report.explain_shares import cause_shares, line_shares
from breakeven.simulate import StepCause
from breakeven.units import format_percent
from breakeven.verdict import ExplainReport
from factories import explanations as made_up
from factories.pages import Reader

STYLE_CLASSES = {f"c{number}" for number in range(7)}


def page(report: ExplainReport) -> Reader:
    return Reader(chart_document(report, ".html"))


@pytest.mark.parametrize("name", made_up.ALL)
def test_the_page_answers_first_and_has_all_sections(name: str) -> None:
    report = made_up.ALL[name]()
    reader = page(report)
    paragraphs = reader.text("p")
    assert paragraphs[0].startswith(f"{report.target} on RTX 4090: ")
    assert paragraphs[0].endswith("a step, predicted.")
    assert paragraphs[1].startswith("Limited by ")
    headings = reader.text("h2")
    assert headings[0] == "One step on both sides"
    assert "What to change, by gain" in headings
    assert ("The step by module" in headings) == (name != "healthy")


def test_every_share_is_in_a_table() -> None:
    report = made_up.launch_bound()
    reader = page(report)
    names, cells = reader.text("th"), reader.text("td")
    for cause in cause_shares(report.attribution):
        assert cause.name in names
        assert format_percent(cause.fraction) in cells
    for line in line_shares(report.attribution, None):
        assert format_percent(line.fraction) in cells
    assert "rnn_stream.py:57" in names


def test_findings_have_gain_place_fix_and_evidence() -> None:
    lines = page(made_up.launch_bound()).text("p")
    finding = made_up.FINDINGS[0]
    start = lines.index("high SYNC001 saves 24 % (18–27 %)")
    assert lines[start + 1 : start + 4] == [
        f"examples/rnn_stream.py:61 · {finding.title}",
        f"fix: {finding.fix}",
        f"seen: {finding.evidence}",
    ]
    # Also of those that a terminal has in a line alone.
    assert f"fix: {made_up.FINDINGS[-1].fix}" in lines


def test_what_a_framework_does_follows_its_line() -> None:
    reader = page(made_up.trainer())
    names = reader.text("th")
    start = names.index("finetune.py:46")
    assert names[start + 1 : start + 3] == ["→ training_step → backward", "→ training_step"]
    assert "below that line: _maybe_log_save_evaluate" in reader.text("p")


def test_the_plan_has_all_devices_with_intervals_and_the_verdict() -> None:
    reader = page(made_up.launch_bound())
    headings = reader.text("th")
    start = headings.index("fix")
    assert headings[start : start + 5] == [
        "fix",
        "RTX 4090",
        "AMD EPYC 7B13",
        "T4",
        "verdict",
    ]
    cells = reader.text("td")
    assert "1.4 ms (1.1–1.8)" in cells
    assert any(re.fullmatch(r"1\.1 ms \(.*\) 1\.3×", cell) for cell in cells)
    assert any(cell.endswith("measured") and cell.startswith("1.21 ms") for cell in cells)
    assert sum("turns" in (row.get("class") or "") for row in reader.all("tr")) == 2


def test_bars_lie_within_their_cells_and_modules_below_their_parents() -> None:
    reader = page(made_up.launch_bound())
    paths = [
        element["d"] for tag, element in reader.elements if tag == "path" and "span" in str(element)
    ]
    bars = [re.fullmatch(r"M([\d.]+),0h([\d.]+)v1h-([\d.]+)z", str(path)) for path in paths if path]
    found = [(float(bar[1]), float(bar[2])) for bar in bars if bar]
    # One for each cause and module.
    assert len(found) == len(cause_shares(made_up.launch_bound_attribution())) + 6
    assert all(start >= 0 and start + length <= 1.0001 for start, length in found)
    depths = [row.get("class") for row in reader.all("tr")][-7:]
    assert [depth for depth in depths if str(depth).startswith("depth")] == [
        "depth1",
        "depth2",
        "depth2",
        "depth1",
    ]


def test_colours_are_those_of_the_style_sheet() -> None:
    document = chart_document(made_up.launch_bound(), ".html").decode()
    used = set(re.findall(r'class="(?:span|bar|key round) (c\d+)"', document))
    assert used
    assert used <= STYLE_CLASSES
    assert all(f".{name}{{--c:" in document for name in used)


def test_the_timeline_has_a_box_with_a_title_for_what_can_be_seen() -> None:
    report = made_up.launch_bound()
    view = SvgTimeline(Timeline(report.timeline, ""))
    titles = [span.title for span in view.spans]
    assert "data · 92 µs · loading data · data · examples/rnn_stream.py:52" in titles
    # Kernels of 2.5 µs are about 1.5 units wide: most of them too narrow to be pointed at.
    num_small = sum(path.count("M") for path in view.small_spans.values())
    assert len(view.spans) + num_small == len(report.timeline)
    assert 0 < num_small <= 96
    for span in view.spans:
        assert span.x >= 60
        assert span.x + span.width <= view.width
    assert [label for _, label in view.ticks] == ["0", "350 µs", "700 µs", "1.1 ms", "1.4 ms"]
    assert "One step on both sides" not in page(replace(report, timeline=())).text("h2")


def test_the_critical_line_goes_from_side_to_side() -> None:
    spans = (
        made_up.span("host", "a", "python", "forward", 1, 0, 50),
        made_up.span("device", "b", "device-convolution", "forward", 1, 50, 100),
    )
    view = SvgTimeline(Timeline(spans, ""))
    heights = re.findall(r"(?:M[\d.]+,|V)([\d.]+)", view.critical)
    assert len(heights) == 2
    assert float(heights[0]) < float(heights[1])


def test_a_long_timeline_makes_a_file_of_bearable_size() -> None:
    spans = tuple(
        made_up.span(track, "aten.addmm.default", cause, "forward", 1, start, start + 0.9)
        for start in range(2_000)
        for track, cause in (("host", StepCause.DISPATCHER), ("device", "device-gemm"))
    )
    document = chart_document(replace(made_up.launch_bound(), timeline=spans), ".html")
    assert len(document) < 250_000


def test_the_policy_forbids_everything_from_elsewhere() -> None:
    document = chart_document(made_up.launch_bound(), ".html").decode()
    reader = Reader(document.encode())
    (policy,) = [m["content"] for m in reader.all("meta") if m.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not [a for _, a in reader.elements if "style" in a or any(k.startswith("on") for k in a)]
    assert not re.search(r"https?:|@import|url\(", document)
    ids = [a["id"] for _, a in reader.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert len(reader.all("caption")) == len(reader.all("table"))
    assert all(cell["scope"] in ("col", "row") for cell in reader.all("th"))


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_text_and_nothing_else(text: str) -> None:
    clean = page(made_up.with_names(made_up.launch_bound(), "plain"))
    document = chart_document(made_up.with_names(made_up.launch_bound(), text), ".html")
    reader = Reader(document)
    assert [tag for tag, _ in reader.elements] == [tag for tag, _ in clean.elements]
    # A long word gets a class that breaks it; nothing else may come of a name.
    assert [set(a) - {"class"} for _, a in reader.elements] == [
        set(a) - {"class"} for _, a in clean.elements
    ]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e]", document.decode())
    assert "49" not in "".join(reader.text("h1"))
    assert len(document) < 250_000


def test_an_explanation_is_no_chart() -> None:
    with pytest.raises(UsageError, match="has no chart"):
        chart_document(made_up.launch_bound(), ".svg")


def test_the_page_is_the_same_for_the_same_report() -> None:
    assert chart_document(made_up.launch_bound(), ".html") == chart_document(
        made_up.launch_bound(), ".html"
    )

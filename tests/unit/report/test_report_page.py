"""The page: one file, everything escaped, nothing from the network, readable by all."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from test_chart_axes import contrast

from breakeven.errors import Caveat
from breakeven.report import chart_document
from breakeven.report.chart_svg import SvgTimeline
from breakeven.report.document import Timeline
from breakeven.report.explain_shares import cause_shares, line_shares
from breakeven.report.text import duration_with_interval
from breakeven.simulate import StepCause
from breakeven.timing import BUSY_MACHINE, Source
from breakeven.units import format_percent
from breakeven.verdict import SweepReport
from factories import explanations, sweeps, tunings
from factories import reports as made_up
from factories.pages import Reader

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\x1b[31mred\x1b[0m",
    "{{ 7 * 7 }}{% raw %}",
    "caf\udce9",
    "\u202egpj.exe",
    "x" * 10_000,
    "' onmouseover='alert(1)",
    "]]><!--",
)


ALL: dict[str, Any] = {f"check {name}": make for name, make in made_up.ALL.items()}
ALL |= {f"explain {name}": make for name, make in explanations.ALL.items()}
ALL |= {f"sweep {name}": make for name, make in sweeps.ALL.items()}
ALL |= {f"tune {name}": make for name, make in tunings.ALL.items()}


def _drawings(reader: Reader) -> list[dict[str, str | None]]:
    return [one for one in reader.all("svg") if one.get("class") == "plot"]


def page_of(report: Any) -> Reader:
    return Reader(chart_document(report, ".html"))


@pytest.fixture(params=ALL)
def page(request: pytest.FixtureRequest) -> bytes:
    return chart_document(ALL[request.param](), ".html")


def test_the_page_is_well_formed_and_says_what_it_is(page: bytes) -> None:
    reader = Reader(page)
    assert reader.all("html")[0]["lang"] == "en"
    assert len(reader.text("title")) >= 1
    assert len(reader.all("h1")) == len(reader.all("main")) == 1
    levels = [int(tag[1]) for tag, _ in reader.elements if re.fullmatch("h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert len(reader.all("caption")) == len(reader.all("table"))
    assert all(cell["scope"] in ("col", "row") for cell in reader.all("th"))
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for chart in _drawings(reader):
        assert set((chart["aria-labelledby"] or "").split()) <= set(ids)


def test_charts_and_frames_have_names_of_their_own(page: bytes) -> None:
    reader = Reader(page)
    frames = [one for _, one in reader.elements if one.get("role") == "region"]
    labels = [frame["aria-label"] for frame in frames]
    assert all(labels)
    assert len(labels) == len(set(labels))
    assert all(frame.get("tabindex") == "0" for frame in frames)
    drawn = _drawings(reader)
    assert all(one.get("role") == "img" for one in drawn)
    assert len(reader.all("desc")) == len(drawn)
    assert all(reader.text("desc"))
    assert all(text.strip() for text in reader.text("th"))


def test_nothing_is_fetched_and_the_policy_forbids_it(page: bytes) -> None:
    reader = Reader(page)
    text = page.decode()
    addresses = [a[key] for _, a in reader.elements for key in ("src", "href") if key in a]
    assert all(address is not None and address.startswith("#") for address in addresses)
    assert not re.search(r"https?:|@import|url\(", text)
    (policy,) = [m["content"] for m in reader.all("meta") if m.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, name in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    # What the policy would block must not be there: it would be a broken page.
    assert not [a for _, a in reader.elements if "style" in a or any(k.startswith("on") for k in a)]


def test_every_figure_of_a_sweep_is_in_the_page_without_a_script() -> None:
    report = sweeps.batch_sizes()
    reader = Reader(chart_document(report, ".html"))
    cells = reader.text("td")
    for point in report.points:
        time = duration_with_interval(point.step_ns, point.low_ns, point.high_ns)
        assert any(cell.startswith(time) for cell in cells)
    assert [name for name in reader.text("th") if name in ("T4", "RTX 4090", "A100 SXM4 80GB")]
    num_measured = sum(point.source is Source.MEASURED for point in report.points)
    assert sum(cell.get("class") == "m" for cell in reader.all("td")) == num_measured
    assert len(list(reader.all("use"))) == len(report.points)


def test_a_check_leads_with_the_verdict_and_names_file_and_line() -> None:
    reader = Reader(chart_document(made_up.cpu_wins(), ".html"))
    paragraphs = reader.text("p")
    assert paragraphs[0] == (
        "Train this on your CPU: 2.3× (1.8–2.9×) faster than the best GPU, RTX 4090."
    )
    assert any("from batch size 640 (410–1,300) on, RTX 4090" in text for text in paragraphs)
    cells = reader.text("td")
    place = "examples/rnn_stream.py:61 · 26 % of the step · the fix saves 24 %"
    assert place in paragraphs
    assert "short-run the step was measured over 43 steps only." in reader.text("li")
    assert "measured (43 steps)" in cells
    assert "this CPU (AMD EPYC 7B13)" in reader.text("th")


def test_failures_and_caveats_of_points_are_told() -> None:
    text = chart_document(sweeps.widths(), ".html").decode()
    assert "ValueError: width must be below 2,000" in text
    report = sweeps.batch_sizes()
    caveat = Caveat(code="long-step", message="the step was not measured here")
    points = tuple(
        msgspec.structs.replace(p, caveats=(caveat,)) if p.device == "T4" else p
        for p in report.points
    )
    reader = Reader(chart_document(msgspec.structs.replace(report, points=points), ".html"))
    assert "long-step the step was not measured here (T4)" in reader.text("li")


def test_a_busy_machine_is_told_beside_the_answer_and_only_there() -> None:
    busy = Caveat(code=BUSY_MACHINE, message="other processes used 50 % of this machine")
    check = made_up.cpu_wins()
    results = tuple(msgspec.structs.replace(r, caveats=(busy,)) for r in check.results[2:3])
    sweep = sweeps.batch_sizes()
    points = tuple(msgspec.structs.replace(p, caveats=(busy,)) for p in sweep.points)
    for report in (
        msgspec.structs.replace(check, results=results, caveats=(busy,)),
        msgspec.structs.replace(sweep, points=points),
    ):
        text = chart_document(report, ".html").decode()
        assert text.count(busy.message) == 1
        assert text.index("Careful: other processes") < text.index("<h2")


def _named(text: str) -> SweepReport:
    """Return a sweep with ``text`` wherever a user's or another's words may be."""
    encoded = msgspec.to_builtins(sweeps.widths())
    encoded["target"] = encoded["host"]["name"] = encoded["host"]["source"] = text
    encoded["arguments"] = [text]
    encoded["axes"][0]["name"] = text
    encoded["failures"][0]["message"] = text
    for published in encoded["published"]:
        published["label"] = published["source"] = text
    for point in encoded["points"]:
        point["settings"] = {text: point["settings"]["width"]}
        point["device"] = text + point["device"]
        point["caveats"] = [{"code": text, "message": text}]
    for crossover in encoded["crossovers"]:
        crossover["held"] = {text: text}
        crossover["device"] = text + crossover["device"]
    return msgspec.convert(encoded, SweepReport)


def test_a_large_sweep_makes_a_small_file() -> None:
    document = chart_document(sweeps.large(num_points=100, num_gpus=9), ".html")
    assert len(Reader(document).all("use")) == 1_000
    assert len(document) < 300_000


def test_many_settings_are_capped_and_it_is_said() -> None:
    report = sweeps.grid(sizes=(16, 32), threads=(1,), depths=tuple(range(1, 41)))
    reader = Reader(chart_document(report, ".html"))
    assert len(reader.all("figure")) == 24
    assert any("The first 24 of 40 charts" in text for text in reader.text("p"))


def _variables(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css))


def test_text_is_readable_on_light_dark_and_printed_paper() -> None:
    (css,) = re.findall(
        "<style>(.*?)</style>", chart_document(made_up.cpu_wins(), ".html").decode(), re.DOTALL
    )
    light_css, dark_css = re.split(r"@media \(prefers-color-scheme: dark\)", css)
    dark_css, print_css = dark_css.split("@media print")
    light = _variables(light_css)
    for theme in (light, light | _variables(dark_css), light | _variables(print_css)):
        # WCAG 2.1 AA: 4.5 for text, 3 for what is drawn.
        for ink in ("ink", "muted", "focus", "good", "bad"):
            for paper in ("paper", "raised", "chosen", "published"):
                assert contrast(theme[ink], theme[paper]) >= 4.5, (ink, paper, theme[ink])
        for drawn in ("axis", "focus"):
            assert contrast(theme[drawn], theme["paper"]) >= 3


COMMAND = "breakeven check train.py --device 'RTX 4090' -- --epochs 3 --tag '<&>'"


@pytest.mark.parametrize(
    "name", ["check cpu_wins", "explain healthy", "sweep widths", "tune faster"]
)
def test_the_command_of_a_report_stands_at_the_top_to_be_copied(name: str) -> None:
    report = ALL[name]()
    reader = page_of(replace(report, command=COMMAND))
    assert reader.text("code") == [COMMAND]
    assert reader.text("button") == ["Copy the command"]
    tags = [tag for tag, _ in reader.elements]
    assert tags.index("h1") < tags.index("button") < tags.index("main")
    # An older report has none, and pasting a line break would run what precedes it.
    for other in ("", "breakeven check a.py\nrm -r /", "\u202egpj.exe"):
        assert not page_of(replace(report, command=other)).all("button")


def test_lines_of_code_stand_below_each_other() -> None:
    report = tunings.with_fast_step()
    page = chart_document(report, ".html").decode()
    shown = html.unescape(page.partition("<pre>")[2].partition("</pre>")[0])
    assert report.code_change is not None
    assert shown.strip("\n") == report.code_change.diff.strip("\n")


@pytest.mark.parametrize("name", explanations.ALL)
def test_the_page_answers_first_and_has_all_sections(name: str) -> None:
    report = explanations.ALL[name]()
    reader = page_of(report)
    paragraphs = reader.text("p")
    assert paragraphs[0].startswith(f"{report.target} on RTX 4090: ")
    assert paragraphs[0].endswith("a step, predicted.")
    # The chart stands between the answer and its reason.
    assert paragraphs[1].startswith("Arrow keys ")
    assert any(paragraph.startswith("Limited by ") for paragraph in paragraphs[2:])
    headings = reader.text("h2")
    assert headings[:2] == ["Speed of each device", "One step on both sides"]
    assert "What to change, by gain" in headings
    assert ("The step by module" in headings) == (name != "healthy")


def test_every_share_is_in_a_table() -> None:
    report = explanations.launch_bound()
    reader = page_of(report)
    names, cells = reader.text("th"), reader.text("td")
    for words, _, fraction, _ in cause_shares(report.attribution):
        assert words in names
        assert format_percent(fraction) in cells
    for line in line_shares(report.attribution, None):
        assert format_percent(line.fraction) in cells
    assert "rnn_stream.py:57" in names


def test_findings_have_gain_place_fix_and_evidence() -> None:
    lines = page_of(explanations.launch_bound()).text("p")
    finding = explanations.FINDINGS[0]
    start = lines.index("high SYNC001 saves 24 % (18–27 %)")
    assert lines[start + 1 : start + 4] == [
        f"examples/rnn_stream.py:61 · {finding.title}",
        f"fix: {finding.fix}",
        f"seen: {finding.evidence}",
    ]
    # Also of those that a terminal has in a line alone.
    assert f"fix: {explanations.FINDINGS[-1].fix}" in lines


def test_the_plan_has_all_devices_with_intervals_and_the_verdict() -> None:
    reader = page_of(explanations.launch_bound())
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


def test_the_timeline_has_a_box_with_a_title_for_what_can_be_seen() -> None:
    report = explanations.launch_bound()
    view = SvgTimeline(Timeline(report.timeline, ""))
    titles = [span.title for span in view.spans]
    assert "data · 92 µs · loading data · data · examples/rnn_stream.py:52" in titles
    # Kernels of 2.5 µs are about 1.5 units wide: most of them too narrow to be pointed at.
    num_small = sum(path.count("M") for path in view.small_spans.values())
    assert len(view.spans) + num_small == len(report.timeline)
    assert 0 < num_small <= 96
    for span in view.spans:
        assert span.x >= 0
        assert span.x + span.width <= view.area
    assert [label for _, label in view.ticks] == ["0", "350 µs", "700 µs", "1.1 ms", "1.4 ms"]
    assert "One step on both sides" not in page_of(replace(report, timeline=())).text("h2")


def test_a_long_timeline_makes_a_file_of_bearable_size() -> None:
    spans = tuple(
        explanations.span(track, "aten.addmm.default", cause, "forward", 1, start, start + 0.9)
        for start in range(2_000)
        for track, cause in (("host", StepCause.DISPATCHER), ("device", "device-gemm"))
    )
    document = chart_document(replace(explanations.launch_bound(), timeline=spans), ".html")
    assert len(document) < 250_000


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize(
    "named", [_named, partial(explanations.with_names, explanations.launch_bound())]
)
def test_hostile_names_are_text_and_nothing_else(named: Callable[[str], Any], text: str) -> None:
    clean = Reader(chart_document(named("plain"), ".html"))
    document = chart_document(named(text), ".html")
    reader = Reader(document)
    assert [tag for tag, _ in reader.elements] == [tag for tag, _ in clean.elements]
    # A long word gets a class that breaks it; nothing else may come of a name.
    assert [set(a) - {"class"} for _, a in reader.elements] == [
        set(a) - {"class"} for _, a in clean.elements
    ]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e]", document.decode())
    assert "49" not in "".join(reader.text("h1"))
    assert len(document) < 250_000


def test_bars_lie_within_their_cells_and_modules_below_their_parents() -> None:
    reader = page_of(explanations.launch_bound())
    paths = [
        element["d"] for tag, element in reader.elements if tag == "path" and "span" in str(element)
    ]
    bars = [re.fullmatch(r"M([\d.]+),0h([\d.]+)v1h-([\d.]+)z", str(path)) for path in paths if path]
    found = [(float(bar[1]), float(bar[2])) for bar in bars if bar]
    # One for each cause and module.
    assert len(found) == len(cause_shares(explanations.launch_bound_attribution())) + 6
    assert all(start >= 0 and start + length <= 1.0001 for start, length in found)
    depths = [row.get("class") for row in reader.all("tr")][-7:]
    assert [depth for depth in depths if str(depth).startswith("depth")] == [
        "depth1",
        "depth2",
        "depth2",
        "depth1",
    ]

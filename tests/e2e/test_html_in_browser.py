"""The page in a real browser: it draws, answers to pointer and keys, and asks for nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from headless_browser import CHROMIUM, Browser
from msgspec.structs import replace

from breakeven import Report
from breakeven.report import chart_document
from breakeven.report.cost_report import CostReport
from breakeven.studies import cost_run
from factories import explanations, sweeps, tunings
from factories import reports as made_up
from unit.studies.test_cost import request, stored

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs the browser chromium on PATH"),
]


def _cost() -> CostReport:
    with TemporaryDirectory() as folder:
        return cost_run(stored(Path(folder)), request())


COMMAND = "breakeven check train.py --device 'RTX 4090' -- --epochs 3"
REPORTS: dict[str, Callable[[], Any]] = {
    "check": made_up.cpu_wins,
    "devices": made_up.gpu_wins,
    "widths": sweeps.widths,
    "grid": sweeps.grid,
    "words": sweeps.words,
    "nothing": sweeps.nothing,
    "hostile": sweeps.hostile,
    "large": sweeps.large,
    "explain": explanations.launch_bound,
    "tune": tunings.with_fast_step,
    "cost": _cost,
}


@pytest.fixture
def load(browser: Browser, tmp_path: Path) -> Callable[..., Browser]:
    def load(name: str, scheme: str = "light", **size: int) -> Browser:
        page, report = tmp_path / "report.html", REPORTS[name]()
        if name in ("check", "explain", "widths", "tune"):
            report = replace(report, command=COMMAND)
        page.write_bytes(chart_document(report, ".html"))
        browser.prefer(scheme)
        browser.open(page.as_uri(), **size)
        return browser

    return load


@pytest.mark.parametrize("name", REPORTS)
def test_the_script_runs_without_a_complaint_or_a_request(
    name: str, load: Callable[..., Browser]
) -> None:
    browser = load(name)
    assert browser.evaluate("document.documentElement.className") == "js"
    assert browser.messages == []
    assert len(browser.requests) == 1
    assert browser.requests[0].startswith("file://")
    assert browser.evaluate("document.title").startswith(("Does", "When", "Where", "What"))
    # Nothing sticks out to the side of the window, nor of a phone.
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    load(name, width=360, height=700)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("name", ["check", "devices", "widths", "grid", "large", "explain"])
def test_a_chart_is_legible_on_a_phone(name: str, load: Callable[..., Browser]) -> None:
    browser = load(name, width=400, height=900)
    # Boxes of the visible texts of the first chart: x, y, right, bottom; turned ones apart.
    boxes = browser.evaluate(
        "[...document.querySelector('svg.plot').querySelectorAll('text')]"
        ".filter(text => getComputedStyle(text).display !== 'none')"
        ".filter(text => !text.hasAttribute('transform'))"
        ".map(text => { const box = text.getBoundingClientRect();"
        " return [box.left, box.top, box.right, box.bottom] })"
    )
    assert len(boxes) > 5
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= 400
        assert bottom - top >= 12
    for one, other in itertools.combinations(boxes, 2):
        is_beside = one[2] <= other[0] or other[2] <= one[0]
        assert is_beside or one[3] <= other[1] + 2 or other[3] <= one[1] + 2


@pytest.mark.parametrize(
    ("scheme", "paper", "blue"),
    [
        ("light", "rgb(255, 255, 255)", "rgb(0, 114, 178)"),
        ("dark", "rgb(21, 24, 29)", "rgb(86, 180, 233)"),
    ],
)
def test_the_colours_follow_the_preference(
    scheme: str, paper: str, blue: str, load: Callable[..., Browser]
) -> None:
    browser = load("widths", scheme)
    style = "getComputedStyle(document.{})"
    assert browser.evaluate(style.format("body") + ".backgroundColor") == paper
    line = style.format("querySelector('.c1 .line')")
    assert browser.evaluate(f"{line}.stroke") == blue


def test_arrow_keys_reach_every_point_and_read_it_out(load: Callable[..., Browser]) -> None:
    browser = load("widths")
    while browser.evaluate("document.activeElement.tagName") != "svg":
        browser.press("Tab")
    assert browser.evaluate("document.activeElement.getAttribute('role')") == "application"

    def read() -> str:
        return browser.evaluate("document.querySelector('.readout').textContent")

    assert browser.evaluate("document.querySelector('.readout').ariaLive") == "polite"
    ring = "document.querySelector('.ring').getAttribute('visibility')"
    assert browser.evaluate(ring) == "visible"
    seen = []
    for _ in range(4):  # three curves, the crossovers
        browser.press("Home")
        own = [read()]
        for _ in range(20):
            browser.press("ArrowRight")
            if read() == own[-1]:
                break
            own.append(read())
        seen.append(own)
        browser.press("ArrowDown")
    assert [len(own) for own in seen] == [7, 7, 7, 2]
    assert seen[0][0] == "this CPU, width 16: 415 µs (409–422), measured"
    assert seen[1][-1] == "T4, width 1,024: 3.7 ms (2.9–4.6), 17× (14–22×), predicted"
    assert seen[3] == ["T4 faster from 168 (145–198) on", "RTX 4090 faster from 130 (104–151) on"]
    browser.press("End")
    browser.press("Escape")
    assert browser.evaluate(ring) == "hidden"


def test_the_legend_hides_and_shows_a_curve_by_key(load: Callable[..., Browser]) -> None:
    browser = load("check")
    group = "getComputedStyle(document.querySelector('g.series[data-series=\"1\"]')).display"
    assert browser.evaluate(group) == "inline"
    browser.evaluate("document.querySelectorAll('.legend button')[1].focus()")
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.getAttribute('aria-pressed')") == "false"
    assert browser.evaluate(group) == "none"
    assert browser.evaluate("document.querySelector('.readout').textContent") == "T4 hidden"
    # What is hidden is passed over.
    browser.evaluate("document.querySelector('svg.plot').focus({focusVisible: true})")
    names = set()
    for _ in range(3):
        browser.press("ArrowDown")
        names.add(browser.evaluate("document.querySelector('.readout').textContent.split(',')[0]"))
    assert "T4" not in names
    browser.evaluate("document.querySelectorAll('.legend button')[1].focus()")
    browser.press("Enter")
    assert browser.evaluate(group) == "inline"


def test_the_pointer_shows_the_nearest_point(load: Callable[..., Browser]) -> None:
    browser = load("check")
    use = "document.querySelectorAll('g.series')[2].querySelectorAll('use')[4]"
    box = browser.evaluate(
        f"(() => {{ const box = {use}.getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2] })()"
    )
    browser.point_at(box[0] + 2, box[1] + 1)
    tip = "document.querySelector('.tip').hidden ? '' : document.querySelector('.tip').textContent"
    nearest = "RTX 4090, batch size 16: 1.4 ms (1.1–1.8), 0.30× (0.22–0.42×), predicted"
    assert browser.evaluate(tip) == nearest
    inside = (
        "(() => { const tip = document.querySelector('.tip').getBoundingClientRect();"
        " return tip.left >= 0 && tip.right <= innerWidth })()"
    )
    assert browser.evaluate(inside)
    browser.point_at(5, 5)
    assert browser.evaluate(tip) == ""


def test_the_page_prints_dark_ink_on_white(load: Callable[..., Browser]) -> None:
    browser = load("check", "dark")
    assert browser.pdf().startswith(b"%PDF-")
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        style = "getComputedStyle(document.body)"
        assert browser.evaluate(f"{style}.backgroundColor") == "rgb(255, 255, 255)"
        assert browser.evaluate(f"{style}.color") == "rgb(0, 0, 0)"
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")


def test_the_page_is_whole_without_its_script(load: Callable[..., Browser]) -> None:
    browser = load("check")
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        load("check")
        root = browser.call("DOM.getDocument")["root"]["nodeId"]

        def count(selector: str) -> int:
            found = browser.call("DOM.querySelectorAll", nodeId=root, selector=selector)
            return len(found["nodeIds"])

        assert count(".js") == count(".legend button") == 0
        assert count("svg.plot use") == 45
        assert count(".figures tbody tr") == 15
        assert count(".legend li[data-series]") == 3
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_report_in_a_notebook_changes_nothing_around_it(browser: Browser, tmp_path: Path) -> None:
    element = Report(sweeps.widths())._repr_html_()
    around = "<h1>Mine</h1><table><tr><th>a</th><td class='answer n'>b</td></tr></table><p>c</p>"
    style = (
        "[...document.querySelectorAll('#mine, #mine *, body')].map(one => ['color', 'font',"
        "'margin', 'padding', 'maxWidth', 'textAlign', 'borderBottom', 'backgroundColor']"
        ".map(name => getComputedStyle(one)[name]).join()).join('|')"
    )
    found = []
    for more in ("", element):
        page = tmp_path / "notebook.html"
        page.write_text(f"<!doctype html><div id='mine'>{around}</div>{more}", "utf-8")
        browser.open(page.as_uri())
        found.append(browser.evaluate(style))
    assert found[0] == found[1]
    inside = "getComputedStyle(document.querySelector('.breakeven-report {}'))"
    assert browser.evaluate(inside.format(".answer") + ".fontWeight") == "600"
    assert browser.evaluate(inside.format(".line") + ".stroke") != "none"
    assert browser.evaluate("document.querySelectorAll('.breakeven-report script').length") == 0


@pytest.mark.parametrize("has_clipboard", [True, False])
def test_a_key_copies_the_command(has_clipboard: bool, load: Callable[..., Browser]) -> None:
    browser = load("check")
    if not has_clipboard:  # as over plain http
        browser.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined}); 0")
    while browser.evaluate("document.activeElement.tagName") != "BUTTON":
        browser.press("Tab")
    assert browser.evaluate("document.activeElement.textContent") == "Copy the command"
    browser.press("Enter")
    status = "document.querySelector('.command [role=status]').textContent"
    browser.evaluate(f"new Promise(done => setInterval(() => {status} && done(0), 10))")
    assert browser.evaluate(status) == "Copied"
    # What was copied can be pasted.
    browser.evaluate("document.body.append(document.createElement('textarea'))")
    browser.evaluate("document.querySelector('textarea').focus()")
    browser.call("Input.dispatchKeyEvent", type="keyDown", commands=["paste"])
    assert browser.evaluate("document.querySelector('textarea').value") == COMMAND


def _violations(browser: Browser) -> list[str]:
    return browser.evaluate(
        "axe.run().then(found => found.violations.map("
        "one => `${one.id}: ${one.help}: ${one.nodes.map(node => node.html).join('; ')}`))"
    )


@pytest.mark.parametrize(("scheme", "width"), [("light", 1_200), ("dark", 400)])
@pytest.mark.parametrize("name", ["check", "explain", "widths", "tune", "cost"])
def test_axe_finds_no_barrier(
    name: str, scheme: str, width: int, load: Callable[..., Browser]
) -> None:
    browser = load(name, scheme, width=width)
    browser.evaluate((resources.files("axe_playwright_python") / "axe.min.js").read_text("utf-8"))
    assert _violations(browser) == []
    # It does look, also at colours.
    browser.evaluate("document.querySelector('.answer').style.color = '#888'")
    browser.evaluate("document.querySelector('.answer').style.background = '#777'")
    browser.evaluate("document.documentElement.lang = ''")
    found = {one.partition(":")[0] for one in _violations(browser)}
    assert found == {"color-contrast", "html-has-lang"}

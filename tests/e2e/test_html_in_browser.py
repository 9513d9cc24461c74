"""The page in a real browser: it draws, answers to pointer and keys, and asks for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headless_browser import CHROMIUM, Browser

from breakeven import Report
from breakeven.report import chart_document
from factories import explanations, sweeps
from factories import reports as made_up

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs the browser chromium on PATH"),
]
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
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def load(browser: Browser, tmp_path: Path) -> Callable[..., Browser]:
    def load(name: str, scheme: str = "light", **size: int) -> Browser:
        page = tmp_path / "report.html"
        page.write_bytes(chart_document(REPORTS[name](), ".html"))
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
    assert browser.evaluate("document.title").startswith(("Does", "When", "Systems", "Where"))
    # Nothing sticks out to the side of the window, nor of a phone.
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if name in ("check", "hostile", "large", "explain"):
        load(name, width=360, height=700)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


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

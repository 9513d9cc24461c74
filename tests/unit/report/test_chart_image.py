"""Charts as SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import msgspec
import pytest

from breakeven.errors import BreakevenError, UsageError
from breakeven.report import chart_document
from breakeven.verdict import DeviceKind
from factories import reports as made_up
from factories import sweeps

ALL: dict[str, Any] = {
    "curves": made_up.cpu_wins,
    "devices": made_up.too_close,
    "crossovers": sweeps.widths,
    "words": sweeps.words,
    "hostile": sweeps.hostile,
}


def svg_texts(document: bytes) -> list[str]:
    root = ElementTree.fromstring(document)
    return ["".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("text")]


def texts_of(report: Any) -> list[str]:
    return svg_texts(chart_document(report, ".SVG"))


@pytest.mark.parametrize("suffix", ["", ".pdf", ".png", ".json", ".\x1b[31m"])
def test_other_suffixes_are_refused(suffix: str) -> None:
    with pytest.raises(UsageError, match="no chart is written as") as caught:
        chart_document(made_up.cpu_wins(), suffix)
    assert "\x1b" not in caught.value.message
    assert ".html or .svg" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ALL)
def test_an_svg_is_the_same_again_and_needs_nothing_else(name: str) -> None:
    report = ALL[name]()
    document = chart_document(report, ".svg")
    assert document == chart_document(report, ".svg")
    root = ElementTree.fromstring(document)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    for node in root.iter():
        assert not node.tag.endswith(("script", "image", "foreignObject"))
        assert all(value.startswith("#") for key, value in node.items() if "href" in key)
    assert not any(word in document for word in (b"var(", b"url(", b"@import"))
    texts = svg_texts(document)
    assert "predicted" in texts
    assert any(text.startswith("speed relative to this CPU") for text in texts)


def test_an_image_names_all_devices() -> None:
    texts = texts_of(sweeps.batch_sizes())
    assert {"this CPU", "T4", "RTX 4090 (first to pay off)"} <= set(texts)
    texts = texts_of(made_up.too_close())
    gpus = {one.device for one in made_up.too_close().results if one.kind is DeviceKind.GPU}
    assert {"this CPU", *gpus} <= set(texts)


def test_crossovers_are_in_the_image() -> None:
    text = "\n".join(texts_of(sweeps.widths()))
    assert "T4 faster from 168 (145–198) on" in text


def test_an_image_follows_the_readers_colours() -> None:
    (style,) = re.findall(
        "<style>(.*?)</style>", chart_document(made_up.cpu_wins(), ".svg").decode(), re.S
    )
    light, dark = style.split("@media screen and (prefers-color-scheme: dark) {")
    for rules, colours in ((light, ("#ffffff", "#1f2328")), (dark, ("#15181d", "#e9edf1"))):
        paper, ink = (
            re.search(rule, rules)
            for rule in (r"\.paper { fill: (#\w+)", r"svg text { fill: (#\w+)")
        )
        assert (paper and paper[1], ink and ink[1]) == colours


def test_names_are_no_markup() -> None:
    report = made_up.cpu_wins()
    names = {"T4": "$\\frac{1}{$", "RTX 4090": "</svg><script>alert(1)</script>"}
    curves, results = (
        tuple(msgspec.structs.replace(one, device=names.get(one.device, one.device)) for one in own)
        for own in (report.curves, report.results)
    )
    report = msgspec.structs.replace(report, curves=curves, results=results, crossover=None)
    assert b"<script" not in chart_document(report, ".svg")
    texts = texts_of(report)
    assert all(any(name[:20] in text for text in texts) for name in names.values())


def test_nothing_to_draw() -> None:
    with pytest.raises(BreakevenError, match="no step time to draw") as caught:
        chart_document(sweeps.nothing(), ".svg")
    assert "shows all else" in (caught.value.hint or "")

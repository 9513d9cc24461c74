"""Charts as PNG and SVG."""

from __future__ import annotations

import importlib
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from breakeven.errors import BreakevenError, UsageError
from breakeven.report import chart_document, ensure_can_chart
from breakeven.report.chart_png import MAX_CHARTS
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


@pytest.fixture(params=[".svg", ".png"])
def texts_of(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any], list[str]]:
    """Return what returns the texts of an image of a report."""
    if request.param == ".svg":
        return lambda report: svg_texts(chart_document(report, ".svg"))
    figure = pytest.importorskip("matplotlib.figure").Figure
    text = importlib.import_module("matplotlib.text").Text
    drawn: list[Any] = []
    save = figure.savefig
    monkeypatch.setattr(
        figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k))
    )

    def texts(report: Any) -> list[str]:
        assert chart_document(report, ".png").startswith(b"\x89PNG")
        return [one.get_text() for one in drawn[-1].findobj(text)]

    return texts


@pytest.mark.parametrize("suffix", [".png", ".PNG"])
def test_images_without_matplotlib_say_how_to_get_it(
    suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chart_document(made_up.cpu_wins(), ".SVG").startswith(b"<svg xmlns=")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for ask in (ensure_can_chart, lambda s: chart_document(made_up.cpu_wins(), s)):
        with pytest.raises(BreakevenError, match="need matplotlib") as caught:
            ask(suffix)
        assert "pip install 'breakeven[plots]'" in (caught.value.hint or "")
        assert caught.value.exit_code == 3
    ensure_can_chart(".html")
    ensure_can_chart(".svg")


@pytest.mark.parametrize("suffix", ["", ".pdf", ".json", ".\x1b[31m"])
def test_other_suffixes_are_refused(suffix: str) -> None:
    with pytest.raises(UsageError, match="no chart is written as") as caught:
        ensure_can_chart(suffix)
    assert "\x1b" not in caught.value.message
    assert ".html, .png or .svg" in (caught.value.hint or "")


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


def test_an_image_names_all_devices(texts_of: Callable[[Any], list[str]]) -> None:
    texts = texts_of(sweeps.batch_sizes())
    assert {"this CPU", "T4", "RTX 4090 (first to pay off)"} <= set(texts)
    texts = texts_of(made_up.too_close())
    gpus = {one.device for one in made_up.too_close().results if one.kind is DeviceKind.GPU}
    assert {"this CPU", *gpus} <= set(texts)


def test_a_png_has_its_size() -> None:
    pytest.importorskip("matplotlib")
    document = chart_document(sweeps.widths(), ".png")
    assert document.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", document[16:24])
    assert width == 1_425
    assert height > 1_400


def test_crossovers_are_in_the_image(
    texts_of: Callable[[Any], list[str]],
) -> None:
    text = "\n".join(texts_of(sweeps.widths()))
    assert "T4 faster from 168 (145–198) on" in text


def test_names_are_neither_formulas_nor_markup(texts_of: Callable[[Any], list[str]]) -> None:
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


@pytest.mark.parametrize("texts_of", [".png"], indirect=True)
def test_charts_beyond_the_most_are_announced(texts_of: Callable[[Any], list[str]]) -> None:
    depths = range(1, MAX_CHARTS + 3)
    report = sweeps.grid(sizes=(16, 32), threads=(1,), depths=tuple(depths))
    drawn = svg_texts(chart_document(report, ".svg"))
    assert drawn.count("speed relative to this CPU") == len(depths)
    texts = texts_of(report)
    assert any(f"(the first {MAX_CHARTS} of {len(depths)} charts)" in text for text in texts)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_nothing_to_draw(suffix: str) -> None:
    if suffix == ".png":
        pytest.importorskip("matplotlib")
    with pytest.raises(BreakevenError, match="no step time to draw") as caught:
        chart_document(sweeps.nothing(), suffix)
    assert "shows all else" in (caught.value.hint or "")

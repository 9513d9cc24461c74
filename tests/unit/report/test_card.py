"""The cost card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from breakeven.report import CostReport, read_document
from breakeven.report.card import card_document, card_rows
from breakeven.studies import cost_run
from breakeven.verdict import DeviceKind
from unit.studies.test_cost import request, stored

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def cost(tmp_path: Path) -> CostReport:
    return cost_run(stored(tmp_path), request())


def test_golden_card(
    tmp_path: Path, cost: CostReport, check_golden: Callable[[str, str], None]
) -> None:
    check_golden(
        "card.md", card_document(read_document(tmp_path / "run.json"), cost, ".md").decode()
    )


def test_three_devices_of_which_the_third_is_faster(cost: CostReport) -> None:
    here, cheap, fast = card_rows(cost.rows)

    assert here.is_here
    assert 1.2 * cheap.time_ns.value < here.time_ns.value
    assert fast.kind is DeviceKind.GPU
    assert len({here.device, cheap.device, fast.device}) == 3


def test_if_no_machine_is_faster_the_card_shows_gpus(tmp_path: Path) -> None:
    rows = card_rows(cost_run(stored(tmp_path, step_s=1e-5), request()).rows)

    assert rows[0].is_here
    assert [row.kind for row in rows[1:]] == [DeviceKind.GPU] * 2
    assert rows[1].usd.value <= rows[2].usd.value


def test_without_a_gpu_that_fits_only_this_machine_is_left(cost: CostReport) -> None:
    here = [row for row in cost.rows if row.is_here]
    late = [replace(row, fits=False, meets_limits=False) for row in cost.rows if not row.is_here]
    assert card_rows([*here, *late]) == here


def test_names_cannot_break_the_table(tmp_path: Path, cost: CostReport) -> None:
    rows = tuple(replace(row, device="a | b\n`c`") for row in cost.rows)
    cost = replace(cost, rows=rows, target="rm x; my <b>.py")
    card = card_document(read_document(tmp_path / "run.json"), cost, ".md").decode()
    assert r"a \| b \`c\`" in card
    assert r"rm x; my \<b\>.py" in card
    assert "breakeven cost 'rm x; my <b>.py' --steps 10000" in card


def test_golden_image(
    tmp_path: Path, cost: CostReport, check_golden: Callable[[str, str], None]
) -> None:
    card = card_document(read_document(tmp_path / "run.json"), cost, ".svg")
    check_golden("card.svg", card.decode())


def image_of(folder: Path, cost: CostReport) -> ElementTree.Element:
    return ElementTree.fromstring(card_document(read_document(folder / "run.json"), cost, ".svg"))


def test_the_image_shows_what_the_markdown_shows(tmp_path: Path, cost: CostReport) -> None:
    markdown = card_document(read_document(tmp_path / "run.json"), cost, ".md").decode()
    texts = [one.text for one in image_of(tmp_path, cost).iter(f"{SVG}text")]
    for line in markdown.splitlines():
        if line.startswith("| ") and "---" not in line and "device" not in line:
            device, machine, step, training, money = line.strip("| ").split(" | ")
            time, _, ends = training[:-1].partition(" (")
            for text in (device, time, ends, money, f"{machine} · {step} per step"):
                assert text in texts


def test_names_of_any_length_and_content_stay_within_the_image(
    tmp_path: Path, cost: CostReport
) -> None:
    name = "<script>alert('&')</script>\x1b[31m\u202e" + "W" * 300
    rows = tuple(replace(row, device=name, machine=name) for row in cost.rows)
    cost = replace(cost, rows=rows, target=f"{name}.py", num_steps=123_456_789)
    image = image_of(tmp_path, cost)
    texts = [one.text or "" for one in image.iter(f"{SVG}text")]

    assert {one.tag.removeprefix(SVG) for one in image.iter()} == {
        "svg", "title", "desc", "style", "rect", "path", "text",
    }  # fmt: skip
    assert max(map(len, texts)) <= 70
    assert texts[0].endswith(", 123,456,789 steps of 64 samples")
    assert len(texts[0]) <= 56
    assert all(text.isprintable() for text in texts)
    height = float(image.attrib["height"])
    assert all(float(one.attrib["y"]) < height for one in image.iter(f"{SVG}text"))
    assert "".join(text for text in texts if "breakeven cost" in text).startswith("breakeven cost")

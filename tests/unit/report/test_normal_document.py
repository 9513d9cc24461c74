"""The document of a judged speed."""

from __future__ import annotations

import json
from collections.abc import Callable

from breakeven.report import chart_document, to_json
from factories import normals
from factories.terminal import shown


def test_golden_at_80_columns(check_golden: Callable[[str, str], None]) -> None:
    check_golden("terminal_normal.txt", shown(normals.all_paces()))


def test_a_slow_step_names_its_causes_with_what_to_look_at() -> None:
    text = " ".join(shown(normals.report(normals.judgement())).split())
    assert "T4 should take 12 ms (9–15) a step; you take 41 ms, 29 ms more:" in text
    assert "the data loader (28 ms), a slowed GPU (24 ms)" in text
    assert "One number cannot tell these causes apart" in text
    assert "nvidia-smi -q -d PERFORMANCE" in text
    assert "Not adjusted" in text


def test_the_page_and_the_document_hold_the_same_answer() -> None:
    report = normals.all_paces()
    page = chart_document(report, ".html").decode()
    assert "Too slow: T4 should take" in page
    assert json.loads(to_json(report))["speeds"][0]["suspects"][0]["cause"] == "loader"

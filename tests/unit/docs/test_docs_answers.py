"""The answers that the docs show can be asked again; their pictures show what a terminal did."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_docs import DOCS, GENERATOR, ROOT

from breakeven.cli.dispatch import build_parser
from factories.loaded_scripts import load_script

ANSWERS = load_script(DOCS / "answers.py", "docs_answers")
TERMINAL = load_script(DOCS / "terminal.py", "docs_terminal")
DEMO = load_script(DOCS / "demo.py", "docs_demo")
SVG = "{http://www.w3.org/2000/svg}"


def words_of(picture: str) -> list[str]:
    return ["".join(text.itertext()) for text in ET.fromstring(picture).iter(f"{SVG}text")]


@pytest.mark.parametrize("answer", GENERATOR.ANSWERS, ids=lambda answer: answer.name)
def test_an_answer_can_be_asked_again(answer: Any) -> None:
    words = shlex.split(answer.command)
    own = words[: words.index("--")] if "--" in words else words
    assert build_parser().parse_args(own).command == words[0]
    assert not answer.script or (ROOT / answer.script).is_file()
    assert answer.file.is_file()


def test_the_median_of_several_tunings_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([4.0, 9.0, 1.0, 7.0, 5.0])

    def tune(words: list[str], folder: Path, _: dict[str, str]) -> SimpleNamespace:
        speedup = next(found)
        (folder / "breakeven.toml").write_text(f"speedup = {speedup}")
        return SimpleNamespace(stdout=json.dumps({"speedup": speedup, "target": f"{folder}/a.py"}))

    monkeypatch.setattr(ANSWERS, "breakeven", tune)
    answer = ANSWERS.Answer(name="a", command="tune a.py")
    text, speedups = ANSWERS.measure(answer, tmp_path, {}, num_runs=5)
    assert json.loads(text) == {"speedup": 5.0, "target": "a.py"}
    assert speedups == [1.0, 4.0, 5.0, 7.0, 9.0]
    assert (tmp_path / "breakeven.toml").read_text() == "speedup = 5.0"


def test_what_is_stored_for_the_docs_stays_small() -> None:
    kept = [DOCS / "demo.cast", *DOCS.glob("answers/*"), *DOCS.glob("pictures/*")]
    assert sum(file.stat().st_size for file in kept) <= 400_000


@pytest.mark.parametrize("name", GENERATOR.GALLERY)
def test_a_stored_answer_becomes_a_page_of_the_gallery(name: str) -> None:
    answer = GENERATOR.STORED[name.removeprefix("gallery/").removesuffix(".html")]
    assert f" {answer.script}" in GENERATOR.GALLERY[name]()


def test_the_pages_name_the_repository_of_the_project() -> None:
    pages = {"ci.md": 2, "gallery.md": 12, "notebooks.md": 1}
    owner = GENERATOR.repository().removeprefix("https://github.com/").partition("/")[0]
    for page, count in pages.items():
        text = (DOCS / page).read_text("utf-8")
        assert re.findall(r"[\w-]+(?=/breakeven(?:@|$|/blob/))", text, re.M) == [owner] * count


def test_the_gallery_has_the_six_systems() -> None:
    from breakeven.systems import SYSTEMS

    titles = " ".join(answer.title for answer in GENERATOR.ANSWERS)
    assert {system.name for system in SYSTEMS} <= set(re.findall(r"`([\w-]+)`", titles))


def test_a_still_shows_words_where_they_stood_in_their_style() -> None:
    picture = TERMINAL.still("\x1b[1;33mToo close\x1b[0m\na <b>   \x1b[2mdim\x1b[0m")
    spans = list(ET.fromstring(picture).iter(f"{SVG}tspan"))
    assert [span.text for span in spans] == ["Too close", "a <b>", "dim"]
    assert [span.get("class") for span in spans] == ["brown bold", None, "dim"]
    assert float(spans[2].get("x", "0")) > float(spans[1].get("x", "0"))


def test_long_output_is_scrolled_through_from_its_command_to_its_end() -> None:
    events = [(0.0, "$ long\r\n"), (1.0, "".join(f"line {n}\r\n" for n in range(20)))]
    views = list(TERMINAL._views(events, num_rows=8))
    seconds = [second for second, _ in views]
    assert seconds == sorted(seconds)
    assert len(set(seconds)) == len(views) > 3
    shown = [["".join(ET.fromstring(f"<t>{row}</t>").itertext()) for _, row in v] for _, v in views]
    assert shown[1][:2] == ["$ long", "line 0"]
    assert shown[-1][-1] == "line 19"
    seen = {line for lines in shown for line in lines}
    assert seen == {"$ long", *(f"line {n}" for n in range(20))}
    picture = TERMINAL.moving(events, num_rows=8)
    assert set(words_of(picture)) == seen
    assert f"k{len(views) - 1} last" in picture


@settings(max_examples=20)  # each draws 400 rows twice
@given(
    drawings=st.lists(
        st.lists(st.sampled_from(["one", "two", "three"]), min_size=1, max_size=3), min_size=1
    ),
    is_printed_between=st.booleans(),
)
def test_leaving_out_redrawn_progress_leaves_the_same_screen(
    drawings: list[list[str]], *, is_printed_between: bool
) -> None:
    text, num_lines = "$ run\r\n", 0
    for lines in drawings:
        text += "\r\x1b[2K" + "\x1b[1A\x1b[2K" * max(0, num_lines - 1)
        if is_printed_between and len(lines) == 2:
            text += "for good\r\n"
        text += "\r\n".join(lines)
        num_lines = len(lines)
    whole, short = TERMINAL.Terminal(), TERMINAL.Terminal()
    whole.feed(text)
    short.feed(DEMO._without_redrawn(text))
    assert short.rows() == whole.rows()


def test_the_recording_is_a_cast_in_the_order_of_time() -> None:
    header, *events = map(json.loads, (DOCS / "demo.cast").read_text("utf-8").splitlines())
    assert (header["version"], header["width"]) == (2, TERMINAL.COLUMNS)
    assert [event[0] for event in events] == sorted(event[0] for event in events)
    assert {event[1] for event in events} == {"o"}
    assert (DOCS / "pictures" / "demo.svg").stat().st_size <= 200_000

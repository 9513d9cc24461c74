"""The corpus of scripts is well-formed, and its markers are read as its README says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from breakeven.device import find_device
from corpus_markers import SAMPLE, SCORED_CAUSES, Fault, parse_script, read_corpus

_PATH = Path("made_up.py")


def test_every_script_parses_and_names_known_causes() -> None:
    scripts = read_corpus()
    assert len(scripts) >= 90
    for script in scripts:
        ast.parse(script.path.read_text(encoding="utf-8"))
        find_device(script.device)
    healthy = sum(script.is_healthy for script in scripts)
    assert healthy >= len(scripts) // 5


def test_every_cause_has_a_faulty_script_and_a_healthy_one() -> None:
    scripts = read_corpus()
    assert SCORED_CAUSES - {cause for script in scripts for cause in script.causes} == set()
    assert SCORED_CAUSES - {cause for script in scripts for cause in script.resembles} == set()


def test_every_cause_has_a_script_in_the_sample() -> None:
    sample = [script for script in read_corpus() if script.name in SAMPLE]
    assert len(sample) == len(SAMPLE)
    assert SCORED_CAUSES - {cause for script in sample for cause in script.causes} == set()
    assert any(script.is_healthy for script in sample)


def test_no_marker_is_both_asked_for_and_optional() -> None:
    both = {s.name: s.causes & s.accepted for s in read_corpus() if s.causes & s.accepted}
    assert both == {}


def test_markers_name_cause_line_and_alternatives() -> None:
    script = parse_script(
        "# device: T4\n"
        "# finds in the step: LAUNCH_FLOOR\n"
        "# may find: BATCH_SMALL, H2D_PAGEABLE\n"
        "for p in q:  # or: OPT_LOOP\n"
        "    p.add_(1)  # finds: OPT_LOOP, SYNC_ITEM/SYNC_METRICS\n"
        "text = '# healthy'\n",
        _PATH,
    )
    assert script.device == "T4"
    assert not script.is_healthy
    assert script.accepted == {"BATCH_SMALL", "H2D_PAGEABLE"}
    assert script.faults == (
        Fault(causes=frozenset({"LAUNCH_FLOOR"}), line=None),
        Fault(causes=frozenset({"OPT_LOOP"}), line=5, other_lines=frozenset({4})),
        Fault(causes=frozenset({"SYNC_ITEM", "SYNC_METRICS"}), line=5),
    )
    step, loop, read = script.faults
    assert step.is_found_by("LAUNCH_FLOOR", 77)
    assert loop.is_found_by("OPT_LOOP", 4)
    assert not loop.is_found_by("OPT_LOOP", 6)
    assert not loop.is_found_by("OPT_LOOP", None)
    assert read.is_found_by("SYNC_METRICS", 5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1  # finds: SYNC_ITEMS\n", "unknown cause"),
        ("x = 1\n", "neither"),
        ("# healthy\nx = 1  # finds: SYNC_ITEM\n", "both"),
        ("# finds: SYNC_ITEM\nx = 1\n", "wrong place"),
        ("x = 1  # finds: SYNC_ITEM\ny = 2  # or: FP64\n", "without a fault"),
    ],
)
def test_wrong_markers_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_script(text, _PATH)

"""Scripts whose DataLoader limits the step on any GPU: the loader is the bound, and found first."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.advise import RuleInput, diagnose
from breakeven.device import find_device
from breakeven.simulate import Bound
from breakeven.source import Sources
from breakeven.studies import explain_target
from breakeven.studies.measured_step import measure_target
from breakeven.studies.study import start_study

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "scripts"


def _lines_here(path: Path) -> list[int]:
    lines = path.read_text().splitlines()
    return [number for number, text in enumerate(lines, 1) if text.endswith("# here")]


@pytest.mark.parametrize(
    ("name", "device"), [("augments_in_workers.py", "T4"), ("rows_in_workers.py", "RTX 4090")]
)
def test_the_loader_that_limits_a_step_is_the_first_finding(name: str, device: str) -> None:
    path = SCRIPTS / name
    (line,) = _lines_here(path)
    report = explain_target(str(path), devices=(device,), budget_s=0.3, tries_cpu=False)
    assert report.bound is Bound.HOST_DATA
    first = report.findings[0]
    assert (first.cause, first.line) == ("TRANSFORM_CPU", line)
    assert "of a processor for each sample" in first.title
    assert "keep them" in first.fix


def test_pictures_that_the_loop_reads_one_by_one_are_found_at_their_line() -> None:
    path = SCRIPTS / "reads_pictures_in_loop.py"
    (line,) = _lines_here(path)
    with start_study(str(path), devices=[find_device("T4")], budget_s=0.3) as study:
        step = measure_target(study.runner)
    # On a busy machine a report withholds what it cannot be sure of.
    sources = Sources.of(step.traced.sources)
    found = diagnose(RuleInput.of(step.program, study.devices[0], study.here, sources=sources))
    assert (found[0].finding.cause, found[0].finding.line) == ("ENV_BOUND", line)

"""Tests that the reports of frozen runs do not change by accident.

After an intended change run ``pytest tests/frozen --update-frozen``, and read the difference.
"""

from __future__ import annotations

import gzip
import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from breakeven.advise import all_rules
from breakeven.simulate import Bound
from breakeven.verdict import Choice
from frozen.documents import differences, pretty, shortened
from frozen.questions import QUESTIONS
from frozen.replay import read_run, replayed

FOLDER = Path(__file__).parent
RUNS = {path.name.removesuffix(".json.gz"): path for path in (FOLDER / "runs").glob("*")}
_NUM_SHOWN = 5
# Paths of a person's machine, outside /project and /python.
_PRIVATE = re.compile(rb"/(?:home|Users|root|work|private|mnt|tmp/tmp)\b[^\"]*|[A-Z]:\\\\[^\"]*")
# Rules that never apply on the machine that froze the runs: two cores, no GPU, other load.
_RULES_LEFT_OUT = {"HOST001", "RUN007"}


@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_frozen_run_gives_its_reports(name: str, request: pytest.FixtureRequest) -> None:
    path, made = _report_path(name), shortened(replayed(read_run(RUNS[name])))
    if request.config.getoption("--update-frozen"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(pretty(made) + "\n", encoding="utf-8")
    assert path.is_file(), f"no {path.name}: run pytest --update-frozen and read the result"
    found = list(islice(differences(_report(name), made), _NUM_SHOWN))
    assert not found, "\n".join(["the report has changed:", *found])


def test_every_question_is_frozen() -> None:
    assert RUNS.keys() == QUESTIONS.keys()
    assert {name: read_run(path).question for name, path in RUNS.items()} == QUESTIONS
    assert {path.stem for path in (FOLDER / "reports").glob("*")} == QUESTIONS.keys()


def test_frozen_runs_hold_each_kind_of_answer() -> None:
    reports = [report for report in map(_report, RUNS) if "check" in report]
    checks = [report["check"] for report in reports]
    findings = [one for report in reports for one in report["check"]["findings"]]
    findings += [one for report in reports for one in report["explain"].get("findings", ())]
    missing = {rule.code for rule in all_rules()} - {one["code"] for one in findings}
    assert missing <= _RULES_LEFT_OUT
    assert {check["verdict"]["choice"] for check in checks} == set(Choice)
    bounds = {result["bound"] for check in checks for result in check["results"]}
    assert bounds - {None} == set(Bound)
    assert {check["crossover"]["outcome"] for check in checks} == {"found", "none"}
    for key in ("generated", "generated_crossover", "compiled", "captured", "absent_cpus"):
        assert any(check[key] for check in checks), key


@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_frozen_run_tells_nothing_of_the_machine_that_froze_it(name: str) -> None:
    assert _PRIVATE.findall(gzip.decompress(RUNS[name].read_bytes())) == []


@pytest.mark.parametrize(
    ("made", "difference"),
    [
        ({"a": [1.0, {"b": "x"}]}, None),
        ({"a": [1.0 + 1e-12, {"b": "x"}]}, None),
        ({"a": [1.0 + 1e-7, {"b": "x"}]}, "a[0] is 1.0000001; it was 1.0"),
        ({"a": [True, {"b": "x"}]}, "a[0] is true; it was 1.0"),
        ({"a": [1.0, {"b": "y"}]}, 'a[1].b is "y"; it was "x"'),
        ({"a": [1.0, {}]}, 'a[1].b is gone; it was "x"'),
        ({"a": [1.0, {"b": "x"}], "c": None}, "c is new: null"),
        ({"a": [1.0]}, 'a has 1 entries, not 2; gone: {"b": "x"}'),
    ],
)
def test_a_difference_is_named_by_its_place(made: Any, difference: str | None) -> None:
    found = list(differences({"a": [1.0, {"b": "x"}]}, made))
    assert found == ([difference] if difference else [])


def _report_path(name: str) -> Path:
    return FOLDER / "reports" / f"{name}.json"


def _report(name: str) -> dict[str, Any]:
    return json.loads(_report_path(name).read_text("utf-8"))

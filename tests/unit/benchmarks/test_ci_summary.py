"""The summary of a CI run counts each test once, and fails if anything failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FAILURE, ERROR, SKIP = '<failure message="no"/>', '<error message="no"/>', "<skipped/>"


@pytest.mark.parametrize(
    ("stages", "tests", "code", "lines"),
    [
        pytest.param(
            {"lint": "ok", "README, tests": "ok", "slow tests": "ok"},
            {"README--tests": {"a": "", "b": SKIP, "c": SKIP},
             "slow-tests": {"b": "", "c": SKIP, "d": ""}},
            0, ["4 passed, 0 failed, 1 skipped"], id="a test counts once, and so does a stage",
        ),
        pytest.param(
            {"lint": "ok", "tests": "FAILED"}, {"tests": {"a": "", "b": FAILURE + ERROR}},
            1, ["FAILED: tests", "FAILED: t::b", "2 passed, 1 failed, 0 skipped"],
            id="a failed test is named, and counts without its stage",
        ),
        pytest.param(
            {"one": "FAILED", "two": "ok"}, {"one": {"a": FAILURE}, "two": {"a": ""}},
            1, ["1 failed"], id="a test that passes elsewhere has failed",
        ),
        pytest.param(
            {"ended": "FAILED", "never began": "FAILED", "lint": "ok"}, {"ended": {"a": ""}},
            1, ["2 passed, 2 failed, 0 skipped"], id="a stage fails without a failed test",
        ),
    ],
)  # fmt: skip
def test_tests_and_stages_are_summed_up(
    stages: dict[str, str],
    tests: dict[str, dict[str, str]],
    code: int,
    lines: list[str],
    tmp_path: Path,
) -> None:
    for stage, outcomes in tests.items():
        cases = (
            f'<testcase classname="t" name="{name}">{end}</testcase>'
            for name, end in outcomes.items()
        )
        (tmp_path / f"{stage}.xml").write_text(f"<testsuite>{''.join(cases)}</testsuite>")
    results = tmp_path / "results"
    results.write_text("".join(f"{ending}\t3\t{name}\n" for name, ending in stages.items()))
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "summary.py"), str(results), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, "")
    for line in lines:
        assert line in done.stdout

"""The summary of a CI run counts each test once, and fails if anything failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FAILURE, ERROR, SKIP = '<failure message="no"/>', '<error message="no"/>', "<skipped/>"


def write_junit(path: Path, *tests: tuple[str, str]) -> None:
    path.parent.mkdir(exist_ok=True)
    cases = (f'<testcase classname="t" name="{name}">{end}</testcase>' for name, end in tests)
    path.write_text(f"<testsuite>{''.join(cases)}</testsuite>", encoding="utf-8")


def sum_up(folder: Path, *stages: tuple[str, str]) -> tuple[int, list[str]]:
    """Return the exit code, and the lines after the seconds of the stages."""
    results = folder / "results"
    results.write_text("".join(f"{ending}\t3\t{name}\n" for ending, name in stages))
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "summary.py"), str(results), str(folder / "junit")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()[2 + len(stages) :]


def test_tests_count_once_and_stages_without_tests_too(tmp_path: Path) -> None:
    write_junit(tmp_path / "junit" / "README--tests.xml", ("a", ""), ("b", SKIP), ("c", SKIP))
    write_junit(tmp_path / "junit" / "slow-tests.xml", ("b", ""), ("c", SKIP), ("d", ""))
    ended = sum_up(tmp_path, ("ok", "lint"), ("ok", "README, tests"), ("ok", "slow tests"))
    assert ended == (0, ["4 passed, 0 failed, 1 skipped"])


def test_a_failed_test_is_named_and_counts_without_its_stage(tmp_path: Path) -> None:
    # It fails, and so does what clears up after it.
    write_junit(tmp_path / "junit" / "tests.xml", ("a", ""), ("b", FAILURE), ("b", ERROR))
    code, lines = sum_up(tmp_path, ("ok", "lint"), ("FAILED", "tests"))
    assert code == 1
    assert lines == ["FAILED: tests", "FAILED: t::b", "2 passed, 1 failed, 0 skipped"]


def test_a_test_that_passes_elsewhere_has_failed(tmp_path: Path) -> None:
    write_junit(tmp_path / "junit" / "one.xml", ("a", FAILURE))
    write_junit(tmp_path / "junit" / "two.xml", ("a", ""))
    code, lines = sum_up(tmp_path, ("FAILED", "one"), ("ok", "two"))
    assert (code, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped")


def test_a_stage_that_fails_without_a_failed_test_counts(tmp_path: Path) -> None:
    write_junit(tmp_path / "junit" / "ended.xml", ("a", ""))
    code, lines = sum_up(tmp_path, ("FAILED", "ended"), ("FAILED", "never began"), ("ok", "lint"))
    assert (code, lines[-1]) == (1, "2 passed, 2 failed, 0 skipped")

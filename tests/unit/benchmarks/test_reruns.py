"""Which tests needed a second try is noted, and twice is too often."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FAILS_ONCE = """
from pathlib import Path

def test_that_fails_once(tmp_path_factory):
    marker = Path(__file__).with_name("tried")
    has_failed = marker.exists()
    marker.touch()
    assert has_failed

def test_that_passes():
    pass
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_second_try_is_noted_once(workers: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "e2e").mkdir()
    (tmp_path / "e2e" / "test_it.py").write_text(FAILS_ONCE)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    noted = tmp_path / "noted"
    environment = {name: os.environ[name] for name in os.environ if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers],
        cwd=tmp_path,
        env={**environment, "RERUNS_FILE": str(noted)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert noted.read_text() == "e2e/test_it.py::test_that_fails_once\n"


def judge(now: str, last: Path) -> subprocess.CompletedProcess[str]:
    (last.parent / "now").write_text(now)
    return subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "reruns.py"), str(last.parent / "now"), str(last)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_once_is_told_and_twice_fails(tmp_path: Path) -> None:
    last = tmp_path / "last"
    first = judge("a::b\na::c\n", last)
    assert (first.returncode, first.stdout.count("second try")) == (0, 2)
    again = judge("a::c\n", last)
    assert again.returncode == 1
    assert "second try: a::c; not for the first time" in again.stdout
    # What the run before was spared counts anew.
    assert [judge(now, last).returncode for now in ("a::b\n", "", "a::b\n")] == [0, 0, 0]
    # Two stages of one run are two runs.
    assert judge("a::d\na::d\n", last).returncode == 1

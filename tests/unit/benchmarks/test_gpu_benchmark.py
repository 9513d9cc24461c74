"""The command for a machine with a GPU, tried on the CPU with tiny sizes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from breakeven.cost import read_calibration

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu" / "run.py"


def run(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, str(SCRIPT), "--out", str(out), "--device", "cpu", "--tiny", "--quick",
         *options),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"XDG_CACHE_HOME": str(out.parent / "cache"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_dry_run_lists_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    found = run(tmp_path / "out", "--dry-run", "--part", "calibrate", "steps")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0] == "calibrate"
    assert len(lines) == 3
    assert all(line.startswith("steps ") for line in lines[1:])
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.slow
def test_the_whole_path_runs_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    out = tmp_path / "out"
    # No time for anything but the calibration, which takes what it needs.
    first = run(out, "--seconds", "24", "--part", "calibrate", "steps")
    assert first.returncode == 1, first.stderr
    assert "2 left" in first.stdout
    second = run(out, "--seconds", "250", "--part", "calibrate", "steps", "tests")
    assert second.returncode == 0, second.stderr
    assert "nothing is left" in second.stdout
    assert "measuring kernels" not in second.stdout
    (file,) = (out / "calibrations").glob("*.json")
    calibration = read_calibration(file.read_bytes(), file.name)
    assert calibration.is_quick
    with (out / "steps.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2
    for row in rows:
        for column in ("value_ms", "before_ms", "after_ms", "after_low_ms", "after_high_ms"):
            assert float(row[column]) > 0, (column, row)
    (answer,) = map(json.loads, (out / "reports.jsonl").read_text().splitlines())
    assert answer["key"] == "tests gpu before"
    summary = (out / "summary.md").read_text()
    assert "| eager, not fitted to | 2 |" in summary or "| eager, fitted to | 2 |" in summary
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) <= 8

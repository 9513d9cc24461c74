"""Answers beside other work on the machine, in one run of the benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.full
@pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="this system does not count waiting"
)
def test_other_work_does_not_turn_the_answer(tmp_path: Path) -> None:
    found = tmp_path / "answers.json"
    script = ROOT / "benchmarks" / "busy_machine.py"
    target = ROOT / "examples" / "disc_mlp.py"
    arguments = ("--neighbours", "4", "--runs", "3", "--json", str(found))
    subprocess.run([sys.executable, str(script), str(target), *arguments], check=True, cwd=tmp_path)
    rows = json.loads(found.read_text())
    assert all(row["choice"] for row in rows), "a check gave no answer"
    quiet, busy = ([row for row in rows if row["beside"] == count] for count in (0, 4))
    # Without a clock of its own a step took 2 to 800 times as long here.
    for key, most in (("cpu_ns", 1.8), ("gpu_ns", 1.6)):
        ratio = median(row[key] for row in busy) / median(row[key] for row in quiet)
        assert 1 / most < ratio < most, key
    settled = {row["choice"] for row in rows} & {"cpu", "gpu"}
    assert len(settled) < 2

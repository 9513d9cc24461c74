"""The host's work of small steps, predicted and measured in one run."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# The same optimizer's path on CPU and GPU, and hardly any arithmetic.
SAME_PATH = ("MLP, SGD foreach", "MLP, Adam fused", "pointwise chain")
OTHERS = ("disc, depth 2", "two towers", "Q-learning", "language model")


@pytest.mark.full
def test_small_steps_take_a_gpu_no_less_than_the_host(tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    names = [option for name in (*SAME_PATH, *OTHERS) for option in ("--only", name)]
    script = ROOT / "benchmarks" / "small_steps.py"
    subprocess.run(
        [sys.executable, str(script), "--csv", str(table), *names], check=True, cwd=tmp_path
    )
    with table.open(newline="") as file:
        rows = {row["network"]: row for row in csv.DictReader(file)}
    ratios = [float(row["step_predicted_us"]) / float(row["step_us"]) for row in rows.values()]
    # Far wider than on a quiet machine, since others may disturb one of the two.
    assert 0.5 < median(ratios) < 2.0
    on_gpu = [float(rows[name]["gpu_us"]) / float(rows[name]["step_us"]) for name in SAME_PATH]
    assert median(on_gpu) > 1.0

from __future__ import annotations

from pathlib import Path

import pytest
from check_process import CheckRun

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.gpu
def test_the_gpu_of_this_machine_is_measured_beside_the_predicted_ones(run_check) -> None:
    run: CheckRun = run_check(EXAMPLES / "mnist_mlp.py")

    assert run.returncode == 0, run.stderr
    assert run.document is not None
    measured = [r for r in run.document["results"] if r["source"] == "measured"]
    assert [result["kind"] for result in measured] == ["cpu", "gpu"]
    assert all(result["num_samples"] >= 2 for result in measured)
    assert measured[1]["low_ns"] <= measured[1]["step_ns"] <= measured[1]["high_ns"]

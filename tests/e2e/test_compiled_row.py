"""The step as torch.compile would make it, among the answers of a check."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from check_process import SCRIPTS, CheckRun

pytestmark = pytest.mark.slow

RunCheck = Callable[..., CheckRun]

SCRIPT = SCRIPTS / "small_network.py"


def test_the_compiled_step_is_predicted_where_asked_for(run_check: RunCheck) -> None:
    run = run_check(SCRIPT, "--no-fast-step", "--compile", "reduce-overhead")
    assert run.returncode == 0, run.stderr
    steps = run.document["compiled"]
    assert steps["mode"] == "reduce-overhead"
    assert not steps["is_asked_for_by_script"]
    assert steps["num_graphs"] == 2  # forward and backward
    assert steps["breaks"] == []
    gpus = {result["device"]: result for result in run.document["results"]}
    for result in steps["results"]:
        eager = gpus[result["device"]]
        assert result["low_ns"] <= result["step_ns"] <= result["high_ns"]
        assert result["speedup"] == pytest.approx(eager["step_ns"] / result["step_ns"])
        # To enter graphs may take a small network longer than what they save.
        assert (result["pays_after_steps"] is None) == (result["speedup"] <= 1)


@pytest.mark.full
def test_it_is_left_out_where_nobody_compiles(run_check: RunCheck) -> None:
    run = run_check(SCRIPT, "--no-fast-step")
    assert run.returncode == 0, run.stderr
    assert run.document["compiled"] is None

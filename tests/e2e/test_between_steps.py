"""What a script does besides its steps."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from check_process import SCRIPTS, CheckRun, line_of

TARGET = SCRIPTS / "evaluates.py"


@pytest.mark.slow
def test_an_evaluation_between_steps_is_named_and_counted(
    run_check: Callable[..., CheckRun],
) -> None:
    run = run_check(TARGET, "--device", "T4", "--epochs", "100")
    assert run.returncode == 0, run.stderr
    program = json.loads(run.stdout)["program"]
    # 200 ms after 20 steps, which take less than 1 ms each on a machine of its own.
    assert program["other_ns"] == pytest.approx(10e6, rel=0.5)
    assert program["step_fraction"] < 0.8
    (part,) = program["parts"]
    assert (part["function"], part["line"]) == ("evaluate", line_of(TARGET, "    evaluate()"))
    assert part["file"] == str(TARGET)
    assert program["num_steps"] == 2_000
    # Twenty seconds of evaluations, whatever computes the steps.
    assert all(time["total_ns"] > 10e9 for time in program["times"])


@pytest.mark.slow
def test_every_update_of_a_federated_loop_is_a_sample(run_check: Callable[..., CheckRun]) -> None:
    run = run_check(SCRIPTS / "federated.py", "--device", "T4")
    assert run.returncode == 0, run.stderr
    cpus = [result for result in json.loads(run.stdout)["results"] if result["kind"] == "cpu"]
    # Not those of the client alone whose turn it was when the time for samples was over.
    assert all(cpu["num_samples"] > 40 for cpu in cpus)
    assert all(cpu["high_ns"] < 3 * cpu["low_ns"] for cpu in cpus if not cpu["is_disturbed"])

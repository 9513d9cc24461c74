"""What a script does besides its steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from check_process import SCRIPTS, CheckRun, line_of

TARGET = SCRIPTS / "evaluates.py"
CASES = Path(__file__).parents[1] / "cases"


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


def program_of(run: CheckRun) -> dict[str, Any]:
    assert run.returncode == 0, run.stderr
    program = json.loads(run.stdout)["program"]
    assert program["other_ns"], "what lies between the steps is not known"
    return program


@pytest.mark.slow
def test_rollouts_see_one_observation_at_a_time_on_a_gpu(
    run_check: Callable[..., CheckRun],
) -> None:
    pytest.importorskip("stable_baselines3")
    target = SCRIPTS / "sb3_ppo.py"
    program = program_of(run_check(target, "--device", "RTX 4090"))
    assert program["step_fraction"] < 0.9
    part = program["parts"][0]
    assert (part["function"], part["line"]) == (
        "OnPolicyAlgorithm.collect_rollouts",
        line_of(target, "model.learn("),
    )
    (on_gpu,) = program["between"]
    assert on_gpu["device"] == "RTX 4090"
    # Each observation is copied up and each action read back: a GPU takes longer for all of it.
    assert on_gpu["time_ns"] > program["other_ns"]


@pytest.mark.slow
def test_a_validation_on_the_lines_of_the_training_is_counted(
    run_check: Callable[..., CheckRun],
) -> None:
    target = SCRIPTS / "train_and_val.py"
    program = program_of(run_check(target, "--device", "T4", "--device", "RTX 4090"))
    # Twice as many batches as of the training, each without a backward pass and an update.
    assert 0.2 < program["step_fraction"] < 0.8
    (part,) = program["parts"]
    assert part["function"] == "Sequential without gradients"
    assert part["line"] == line_of(target, "cross_entropy(model(inputs)")
    t4, rtx_4090 = program["between"]
    assert rtx_4090["time_ns"] <= t4["time_ns"]


@pytest.mark.full
def test_work_between_epochs_is_named_and_stays_on_the_cpu(
    run_check: Callable[..., CheckRun], tmp_path: Path
) -> None:
    text = (CASES / "14_lightgcn.py").read_text()
    target = tmp_path / "lightgcn.py"
    # A tenth of its size, with larger embeddings: an epoch of a few seconds.
    small = text.replace("29858, 40981, 810128", "2985, 4098, 81012")
    target.write_text(small.replace("default=64", "default=256"))
    run = run_check(target, "--device", "RTX 4090")
    program = program_of(run)
    part = program["parts"][0]
    assert (part["function"], part["line"]) == ("draw", line_of(target, "rows = draw(data)"))
    assert part["time_ns"] > 0.5 * program["other_ns"]
    verdict = json.loads(run.stdout)["verdict"]
    assert verdict["device"] == "RTX 4090"
    assert program["speedup"] < 0.5 * verdict["speedup"]

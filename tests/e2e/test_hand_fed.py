"""The crossover of a script whose batch size nobody can set from outside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from check_process import SCRIPTS, CheckRun

TARGET = SCRIPTS / "hand_fed.py"


@pytest.mark.slow
def test_other_batch_sizes_are_predicted_from_the_one_that_was_run(
    run_check: Callable[..., CheckRun],
) -> None:
    run = run_check(TARGET, "--device", "T4", "--no-fast-step")
    assert run.returncode == 0, run.stderr
    report = run.document
    assert report["step"]["batch_size"] == 48
    (caveat,) = [each for each in report["caveats"] if each["code"] == "batch-sizes-predicted"]
    assert "only a batch of 48 was run" in caveat["message"]
    cpu, gpu = report["curves"]
    sources = {point["size"]: point["source"] for point in cpu["points"]}
    assert sources.pop(48) == "measured"
    assert set(sources.values()) == {"predicted"}
    assert {point["source"] for point in gpu["points"]} == {"predicted"}
    # A step of small layers is bound by its launches, so a GPU takes as long for more samples.
    times = {point["size"]: point["step_ns"] for point in gpu["points"]}
    assert times[64] == pytest.approx(times[48], rel=0.1)
    assert report["crossover"]["axis"] == "batch_size"
    assert report["crossover"].get("searched") or report["crossover"].get("none_because")


@pytest.mark.full
def test_a_batch_as_large_as_a_layer_is_told_as_the_reason(
    run_check: Callable[..., CheckRun],
) -> None:
    run = run_check(TARGET, "--device", "T4", "--no-fast-step", arguments=["128"])
    assert run.returncode == 0, run.stderr
    because = run.document["crossover"]["none_because"]
    assert "the batch of 128 samples is as large as a dimension of the model" in because
    assert "--batch-size N" not in because

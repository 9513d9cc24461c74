"""CPUs that are not here, among the answers of a check."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from check_process import SCRIPTS, CheckRun

RunCheck = Callable[..., CheckRun]

SCRIPT = SCRIPTS / "small_network.py"


@pytest.mark.slow
def test_cpus_that_are_named_are_predicted(run_check: RunCheck) -> None:
    run = run_check(
        SCRIPT, "--no-fast-step", "--device", "T4", "--device", "i9-10940X",
        "--device", "8 cores of EPYC 7R13", "--steps", "1000",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    absent = run.document["absent_cpus"]
    assert [one["device"] for one in absent] == ["Core i9-10940X (14 cores)", "EPYC 7R13 (8 cores)"]
    (here,) = {one["step_ns"] for one in run.cpus[:1]}
    for result in absent:
        assert result["source"] == "predicted"
        assert result["low_ns"] < result["step_ns"] < result["high_ns"]
        # A small network's step is Python for the most part: no CPU has a tenth of it.
        assert 0.1 < result["step_ns"] / here < 10
    # The whole training has the same rest on each.
    times = {one["device"]: one for one in run.document["program"]["times"]}
    assert len(times) == 4
    for result in absent:
        time = times[result["device"]]
        assert time["low_ns"] < time["total_ns"] < time["high_ns"]
        assert time["total_ns"] > 999 * result["step_ns"]
    assert [one["device"] for one in run.gpus] == ["T4"]
    assert run.document["verdict"]["device"] not in {one["device"] for one in absent}


def test_a_name_of_no_device_lists_cpus_too(run_check: RunCheck) -> None:
    run = run_check(SCRIPT, "--device", "i9-10941X")
    assert run.returncode == 3
    assert "Core i9-10940X" in run.stderr
    assert "breakeven devices --hosts" in run.stderr


def test_a_cpu_of_which_too_little_is_known_is_refused(run_check: RunCheck) -> None:
    run = run_check(SCRIPT, "--device", "EPYC 7313")
    assert run.returncode == 3
    assert "no step can be predicted for the CPU EPYC 7313" in run.stderr
    assert "EPYC 7R13" in run.stderr

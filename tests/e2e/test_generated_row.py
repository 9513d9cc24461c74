"""The step as generated code, among the answers of a check."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from check_process import SCRIPTS, CheckRun

pytestmark = pytest.mark.slow

RunCheck = Callable[..., CheckRun]

SCRIPT = SCRIPTS / "small_network.py"


def test_a_small_step_is_timed_as_generated_code_too(run_check: RunCheck) -> None:
    run = run_check(SCRIPT)
    assert run.returncode == 0, run.stderr
    step = run.document["generated"]
    assert 0 < step["code_ns"] < step["step_ns"]
    assert step["low_ns"] <= step["step_ns"] <= step["high_ns"]
    assert step["kept_ns"] > 0  # the loader's batches
    parts_ns = step["code_ns"] + step["call_ns"] + step["kept_ns"]
    assert step["step_ns"] == pytest.approx(parts_ns)
    best_ns = min(result["step_ns"] for result in run.cpus)
    assert step["speedup"] == pytest.approx(best_ns / step["step_ns"], rel=0.01)
    assert step["speedup"] > 1.1
    # A GPU has to beat a faster CPU: from a larger size on, or at none that was searched.
    crossover = run.document["generated_crossover"]
    assert crossover["searched"][0] == 16
    assert crossover["outcome"] in ("found", "none")
    assert all("generated" not in result["device"] for result in run.document["results"])
    # The best GPU's step has its row, too: small, and without a read.
    captured = run.document["captured"]
    assert captured["because"] == ""
    eager_ns = {result["device"]: result["step_ns"] for result in run.document["results"]}
    graph = captured["result"]
    assert graph["setting"] == "CUDA graph"
    assert graph["low_ns"] < graph["step_ns"] < graph["high_ns"]
    assert graph["step_ns"] < 0.9 * eager_ns[graph["device"]]
    assert run.document["writes"]["num_files"] == 0


def test_the_report_shows_it_in_words(run_check: RunCheck) -> None:
    run = run_check(SCRIPT, as_json=False)
    assert run.returncode == 0, run.stderr
    words = " ".join(run.stdout.split())
    assert "● this CPU, generated step" in words
    assert "With forward, backward and update as generated code, a step takes this CPU" in words
    assert "generated code on" in words
    assert "At their best: a generated step takes this CPU" in words
    assert "with a CUDA graph" in words


@pytest.mark.full
def test_what_has_no_generated_code_is_named(run_check: RunCheck) -> None:
    run = run_check(SCRIPT, arguments=["--sorts"])
    assert run.returncode == 0, run.stderr
    assert run.document["generated"] is None
    (message,) = (c["message"] for c in run.document["caveats"] if c["code"] == "not-generated")
    assert "sort" in message


@pytest.mark.full
def test_it_can_be_left_out(run_check: RunCheck) -> None:
    run = run_check(SCRIPT, "--no-fast-step")
    assert run.returncode == 0, run.stderr
    assert run.document["generated"] is None
    assert "not-generated" not in run.caveat_codes

"""The neural ODE's scripts: they train, agree with each other, and are recorded whole."""

from __future__ import annotations

import re

import pytest

from breakeven.capture import run_script
from breakeven.systems import Bench, script_path

pytest.importorskip("torchdiffeq", reason="the neural ODE needs torchdiffeq")

pytestmark = pytest.mark.slow

SCRIPTS = ("neural_ode.py", "neural_ode_solver.py")


def _losses(script: str, *options: str) -> list[float]:
    printed = run_script(script_path(script), ("--iterations", "51", *options))
    return [float(loss) for loss in re.findall(r"loss +([0-9.]+)", printed)]


@pytest.mark.full
def test_training_lowers_the_loss_alike_with_both_solvers() -> None:
    first, second = (_losses(script) for script in SCRIPTS)
    for start, end in (first, second):
        assert end < 0.5 * start
    assert second[0] == pytest.approx(first[0], rel=1e-3)
    assert second[1] == pytest.approx(first[1], rel=0.05)


@pytest.mark.full
def test_training_goes_on_from_a_checkpoint(tmp_path) -> None:
    weights = str(tmp_path / "weights.pt")
    _, saved = _losses("neural_ode.py", "--save", weights)
    for script in SCRIPTS:
        assert _losses(script, "--load", weights)[0] == pytest.approx(saved, rel=0.2)


def test_step_is_recorded_with_the_syncs_of_an_adaptive_solver() -> None:
    with Bench() as bench:
        trace = bench.step("neural_ode.py")
        own = bench.step("neural_ode_solver.py")
        predictions = bench.predict(trace, ("K40", "RTX 4090"))
    assert trace.faults == own.faults == ()
    assert trace.num_parameters == own.num_parameters == 703
    # It asks at each of 101 times whether the solver is there yet, the own one only at its steps.
    assert len(trace.syncs) > 101 > len(own.syncs) > 1
    assert len(own.ops) < len(trace.ops) / 2
    for prediction in predictions:
        assert prediction.bound in ("launch", "sync")
        assert prediction.device_busy_ns < 0.5 * prediction.estimate.value_ns

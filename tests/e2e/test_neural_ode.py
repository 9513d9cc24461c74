"""The neural ODE's script: it trains, its ways agree with each other, and it is recorded whole."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from breakeven.capture import run_script
from breakeven.systems import Bench, script_path

pytestmark = pytest.mark.slow

SCRIPT = "neural_ode.py"
TORCHDIFFEQ = ("--solver", "torchdiffeq")
needs_torchdiffeq = pytest.mark.skipif(
    find_spec("torchdiffeq") is None, reason="compares with torchdiffeq"
)


def _losses(*options: str) -> list[float]:
    printed = run_script(script_path(SCRIPT), ("--iterations", "51", *options))
    return [float(loss) for loss in re.findall(r"loss +([0-9.]+)", printed)]


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [("--fast-step",), pytest.param(TORCHDIFFEQ, marks=needs_torchdiffeq)],
    ids=" ".join,
)
def test_training_lowers_the_loss_alike_in_another_way(options: tuple[str, ...]) -> None:
    first, second = _losses(), _losses(*options)
    for start, end in (first, second):
        assert end < 0.5 * start
    assert second[0] == pytest.approx(first[0], rel=1e-3)
    assert second[1] == pytest.approx(first[1], rel=0.05)


@pytest.mark.full
def test_training_goes_on_from_a_checkpoint(tmp_path) -> None:
    weights = str(tmp_path / "weights.pt")
    _, saved = _losses("--save", weights)
    assert _losses("--load", weights)[0] == pytest.approx(saved, rel=0.2)


def test_step_is_recorded_with_the_syncs_of_an_adaptive_solver() -> None:
    with Bench() as bench:
        trace = bench.step(SCRIPT)
        predictions = bench.predict(trace, ("K40", "RTX 4090"))
    assert trace.faults == ()
    assert trace.num_parameters == 703
    # Our own solver asks once a step whether it was precise enough.
    assert 1 < len(trace.syncs) < 101
    for prediction in predictions:
        assert prediction.bound in ("launch", "sync")
        assert prediction.device_busy_ns < 0.5 * prediction.estimate.value_ns


@pytest.mark.full
@needs_torchdiffeq
def test_torchdiffeq_asks_at_each_time_whether_it_is_there_yet() -> None:
    with Bench() as bench:
        trace, own = bench.step(SCRIPT, *TORCHDIFFEQ), bench.step(SCRIPT)
    assert trace.faults == ()
    assert trace.num_parameters == 703
    assert len(trace.syncs) > 101
    assert len(own.ops) < len(trace.ops) / 2

"""What counts as one step, in the loops that people write and in those of frameworks.

The scripts are compared with themselves: twice the work inside of a step must show as twice the
operators, work outside of it must not show at all.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from check_process import SCRIPTS, CheckRun

pytestmark = pytest.mark.slow

RunCheck = Callable[..., CheckRun]


def _step(run: CheckRun) -> dict[str, int]:
    assert run.returncode == 0, run.stderr
    return run.document["step"]


def test_accumulated_micro_batches_are_one_step(run_check: RunCheck) -> None:
    script = SCRIPTS / "accumulation.py"
    one = _step(run_check(script, arguments=("--micro-batches", "1")))
    four = _step(run_check(script, arguments=("--micro-batches", "4")))

    # The micro-batches after the first add their gradients to the ones before, the first one
    # keeps its own (a ``detach``): one operator for each parameter either way.
    micro_batch_ops, rest = divmod(four["num_ops"] - one["num_ops"], 3)
    assert rest == 0
    # Forward: two linear layers, ReLU, log-softmax, NLL, division; backward: at least as many.
    assert micro_batch_ops >= 12
    # SGD without momentum is a single foreach addition.
    assert one["num_ops"] - micro_batch_ops == 1
    assert four["batch_size"] == 32
    assert one["batch_size"] == 8
    assert four["num_parameters"] == 16 * 32 + 32 + 32 * 4 + 4


@pytest.mark.full
def test_a_gan_round_holds_both_optimizers(run_check: RunCheck) -> None:
    one = _step(run_check(SCRIPTS / "gan.py", arguments=("--critic-steps", "1")))
    five = _step(run_check(SCRIPTS / "gan.py", arguments=("--critic-steps", "5")))

    # One ``.item()`` in each update.
    assert one["num_syncs"] == 1 + 1
    assert five["num_syncs"] == 5 + 1
    critic_ops, rest = divmod(five["num_ops"] - one["num_ops"], 4)
    assert rest == 0
    assert 20 < critic_ops < one["num_ops"]
    critic_parameters = 2 * 32 + 32 + 32 + 1
    generator_parameters = 4 * 32 + 32 + 32 * 2 + 2
    assert one["num_parameters"] == critic_parameters + generator_parameters


def test_all_closure_evaluations_of_lbfgs_are_one_step(run_check: RunCheck) -> None:
    four = _step(run_check(SCRIPTS / "lbfgs.py", arguments=("--max-iter", "4")))
    eight = _step(run_check(SCRIPTS / "lbfgs.py", arguments=("--max-iter", "8")))

    # Each iteration reads the loss once and compares the gradient's largest element on the host.
    assert eight["num_syncs"] - four["num_syncs"] >= 2 * 4
    # An evaluation alone is two linear layers, tanh and MSE, forward and backward.
    assert eight["num_ops"] - four["num_ops"] >= 4 * 15
    assert eight["num_ops"] < 2.2 * four["num_ops"]


@pytest.mark.full
def test_lightning_runs_unchanged(run_check: RunCheck) -> None:
    run = run_check(SCRIPTS / "lightning_loop.py")
    step = _step(run)
    assert step["batch_size"] == 16
    assert step["num_parameters"] == 20 * 32 + 32 + 32 * 3 + 3
    # The batch goes to the device: 16 rows of 20 floats, and 16 labels of 8 bytes.
    assert step["h2d_bytes"] == 16 * 20 * 4 + 16 * 8
    # A two-layer perceptron's step, not an epoch of ten batches.
    assert 15 <= step["num_ops"] <= 60


@pytest.mark.full
def test_the_trainer_of_transformers_runs_unchanged(run_check: RunCheck) -> None:
    step = _step(run_check(SCRIPTS / "hf_trainer_loop.py"))
    assert step["batch_size"] == 8
    # Tokens, mask and labels, each of 8 bytes.
    assert step["h2d_bytes"] == 8 * 12 * 8 + 8 * 12 * 8 + 8 * 8
    # Two layers of BERT, forward and backward: some 60 operators each at the least.
    assert 200 <= step["num_ops"] <= 2_000


@pytest.mark.full
def test_a_module_runs_as_python_does(run_check: RunCheck, work_folder: Path) -> None:
    shutil.copytree(SCRIPTS / "package_loop", work_folder / "package_loop")
    run = run_check("package_loop.train", "-m", arguments=("24",))
    assert _step(run)["batch_size"] == 24
    assert run.document["target"] == "package_loop.train"


@pytest.mark.full
def test_a_function_may_be_a_step_or_the_whole_loop(run_check: RunCheck) -> None:
    script = SCRIPTS / "functions.py"
    one_step = _step(run_check(f"{script}:one_step"))
    loop = _step(run_check(f"{script}:train"))
    whole_script = _step(run_check(script))
    counts = ("num_ops", "num_kernels", "num_syncs", "h2d_bytes", "d2h_bytes", "num_parameters")
    for count in counts:
        assert one_step[count] == loop[count] == whole_script[count], count
    assert one_step["num_syncs"] == 1
    assert one_step["d2h_bytes"] == 4  # the loss, a float


@pytest.mark.parametrize(
    ("function", "expected"),
    [("on_step", "one_step"), ("not_a_step", "factor")],
    ids=["absent", "takes an argument"],
)
def test_a_function_that_cannot_be_called_is_explained(
    run_check: RunCheck, function: str, expected: str
) -> None:
    run = run_check(f"{SCRIPTS / 'functions.py'}:{function}")
    assert run.returncode == 3
    assert "error:" in run.stderr
    assert expected in run.stderr


def test_validation_between_steps_is_no_part_of_a_step(run_check: RunCheck) -> None:
    script = SCRIPTS / "validation.py"
    with_validation = _step(run_check(script))
    without = _step(run_check(script, arguments=("--no-validation",)))
    assert with_validation["batch_size"] == without["batch_size"] == 8
    for count in ("num_ops", "num_kernels", "num_syncs", "h2d_bytes"):
        assert with_validation[count] == without[count], count
    assert without["num_syncs"] == 0
    assert without["h2d_bytes"] == 8 * 16 * 4 + 8 * 8

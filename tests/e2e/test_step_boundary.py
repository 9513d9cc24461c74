"""What counts as one step, in the loops that people write.

The scripts are compared with themselves: twice the work inside of a step must show as twice the
operators, work outside of it must not show at all.
"""

from __future__ import annotations

import pytest
from script_runs import recorded

from breakeven.capture import Launcher
from breakeven.trace import StepTrace

pytestmark = pytest.mark.slow


def steps_of(launcher: Launcher, script: str, *variants: tuple[str, ...]) -> list[StepTrace]:
    return [recorded(launcher, script, *arguments).trace for arguments in variants]


def counts(trace: StepTrace) -> tuple[int, ...]:
    return len(trace.ops), len(trace.syncs), trace.h2d_bytes, trace.d2h_bytes, trace.num_parameters


def test_accumulated_micro_batches_are_one_step(launcher: Launcher) -> None:
    one, four = steps_of(
        launcher, "accumulation.py", ("--micro-batches", "1"), ("--micro-batches", "4")
    )
    # The micro-batches after the first add their gradients to the ones before, the first one
    # keeps its own (a ``detach``): one operator for each parameter either way.
    micro_batch_ops, rest = divmod(len(four.ops) - len(one.ops), 3)
    assert rest == 0
    # Forward: two linear layers, ReLU, log-softmax, NLL, division; backward: at least as many.
    assert micro_batch_ops >= 12
    # SGD without momentum is a single foreach addition.
    assert len(one.ops) - micro_batch_ops == 1
    assert (four.batch_size, one.batch_size) == (32, 8)
    assert four.num_parameters == 16 * 32 + 32 + 32 * 4 + 4


def test_a_gan_round_holds_both_optimizers(launcher: Launcher) -> None:
    one, five = steps_of(launcher, "gan.py", ("--critic-steps", "1"), ("--critic-steps", "5"))
    # One ``.item()`` in each update.
    assert (len(one.syncs), len(five.syncs)) == (1 + 1, 5 + 1)
    critic_ops, rest = divmod(len(five.ops) - len(one.ops), 4)
    assert rest == 0
    assert 20 < critic_ops < len(one.ops)
    # Critic and generator.
    assert one.num_parameters == (2 * 32 + 32 + 32 + 1) + (4 * 32 + 32 + 32 * 2 + 2)


def test_all_closure_evaluations_of_lbfgs_are_one_step(launcher: Launcher) -> None:
    four, eight = steps_of(launcher, "lbfgs.py", ("--max-iter", "4"), ("--max-iter", "8"))
    # Each iteration reads the loss once and compares the gradient's largest element on the host.
    assert len(eight.syncs) - len(four.syncs) >= 2 * 4
    # An evaluation alone is two linear layers, tanh and MSE, forward and backward.
    assert len(eight.ops) - len(four.ops) >= 4 * 15
    assert len(eight.ops) < 2.2 * len(four.ops)


def test_a_function_may_be_a_step_or_the_whole_loop(launcher: Launcher) -> None:
    targets = ("functions.py:one_step", "functions.py:train", "functions.py")
    one_step, loop, script = (recorded(launcher, target).trace for target in targets)
    assert counts(one_step) == counts(loop) == counts(script)
    assert len(one_step.syncs) == 1
    assert one_step.d2h_bytes == 4  # the loss, a float


def test_validation_between_steps_is_no_part_of_a_step(launcher: Launcher) -> None:
    validated, plain = steps_of(launcher, "validation.py", (), ("--no-validation",))
    assert validated.batch_size == plain.batch_size == 8
    assert counts(validated) == counts(plain)
    assert plain.syncs == ()
    assert plain.h2d_bytes == 8 * 16 * 4 + 8 * 8

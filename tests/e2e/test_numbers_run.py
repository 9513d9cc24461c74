"""Losses and gradients of real scripts, recorded in processes of their own and compared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import monotonic
from typing import Any

import pytest
from msgspec import convert
from script_runs import request_of

from breakeven.capture import Launcher
from breakeven.trace import Configuration
from breakeven.tune.equivalence import EquivalenceCheck
from breakeven.verdict import Numerics

AS_IT_IS = Configuration()
ON_THREE_THREADS = Configuration(num_threads=3)
OpenGate = Callable[..., AbstractContextManager[EquivalenceCheck]]


@pytest.fixture(scope="module")
def open_gate(launcher: Launcher) -> OpenGate:
    """Return a function that opens the gate of a script."""

    @contextlib.contextmanager
    def gate_of(
        script: str, *arguments: str, time_limit_s: float = 60.0, **options: Any
    ) -> Iterator[EquivalenceCheck]:
        request = request_of(script, *arguments, time_limit_s=time_limit_s, budget_s=1.0)
        with EquivalenceCheck(launcher, request, **options) as gate:
            yield gate

    return gate_of


@pytest.fixture(scope="module")
def mlp(open_gate: OpenGate) -> Iterator[EquivalenceCheck]:
    """Return the gate of a network with dropout and Adam, whose baseline is recorded once."""
    # Compiling takes its time on a machine that does other work.
    with open_gate("numbers_mlp.py", time_limit_s=240.0) as gate:
        yield gate


@pytest.mark.parametrize(
    ("settings", "numerics"),
    [
        ({}, Numerics.EXACT),
        ({"gathers_batches": True}, Numerics.EXACT),
        ({"flushes_denormals": True}, Numerics.REORDERED),
        ({"num_threads": 3}, Numerics.REORDERED),
        ({"optimizer": "fused"}, Numerics.REORDERED),
        ({"autocast": "bfloat16"}, Numerics.LOWER_PRECISION),
    ],
)
def test_settings_are_of_the_class_that_they_are_said_to_be(
    mlp: EquivalenceCheck, settings: dict[str, object], numerics: Numerics
) -> None:
    assert mlp.check(convert(settings, Configuration), numerics) is None


@pytest.mark.full
def test_a_compiled_model_with_dropout_draws_the_same_numbers(mlp: EquivalenceCheck) -> None:
    assert mlp.check(Configuration(compile_mode="default"), Numerics.REORDERED) is None


def test_lower_precision_passes_neither_as_rounding_nor_as_exact(mlp: EquivalenceCheck) -> None:
    lower = Configuration(autocast="bfloat16")
    reason = mlp.check(lower, Numerics.REORDERED) or ""
    assert reason.startswith("at step 1 the ")
    assert "(allowed: 0.0" in reason
    reason = mlp.check(lower, Numerics.LOWER_PRECISION, is_exact_only=True) or ""
    assert reason.endswith("(allowed: not one bit)")


def test_a_script_that_seeds_nothing_is_made_to_repeat_itself(open_gate: OpenGate) -> None:
    with open_gate("numbers_unseeded.py") as gate:
        assert gate.check(AS_IT_IS, Numerics.EXACT) is None


def test_a_script_seeded_by_the_clock_cannot_be_checked_and_need_only_be_finite(
    open_gate: OpenGate,
) -> None:
    with open_gate("numbers_by_the_clock.py") as gate:
        for numerics in Numerics:
            reason = gate.check(AS_IT_IS, numerics)
            if numerics is Numerics.TRAINING:
                assert reason is None
            else:
                said = "cannot be checked: two runs of the script as it is differ ("
                assert (reason or "").startswith(said)


def test_a_script_that_ends_before_is_compared_as_far_as_it_goes(open_gate: OpenGate) -> None:
    with open_gate("numbers_few_steps.py") as gate:
        assert gate.check(AS_IT_IS, Numerics.EXACT) is None
    with open_gate("numbers_few_steps.py", "0") as gate:
        reason = gate.check(AS_IT_IS, Numerics.EXACT)
    assert reason == "cannot be checked: the script came to its end without two optimizer steps"


@pytest.mark.parametrize(
    ("what", "numerics", "reason"),
    [
        ("nothing", Numerics.EXACT, None),
        ("last-bit", Numerics.REORDERED, None),
        ("last-bit", Numerics.EXACT, "at step 3 the gradient of 0.weight differs by "),
        ("scaled", Numerics.REORDERED, "at step 3 the gradient of 0.weight differs by 5 % (allo"),
        ("nan", Numerics.TRAINING, "at step 3 the gradient of 0.weight is not finite in 1 places"),
        ("none", Numerics.LOWER_PRECISION, "at step 3 the gradient of 0.weight is missing"),
        ("draws", Numerics.REORDERED, "after 5 steps other random numbers have been drawn"),
        ("ends", Numerics.REORDERED, "the run ends after 1 step, instead of 5"),
        ("raises", Numerics.REORDERED, "while its numbers were recorded: RuntimeError: not on "
         "three threads"),
        ("dies", Numerics.REORDERED, "while its numbers were recorded: the process was ended "
         "by SIGABRT"),
    ],
)  # fmt: skip
def test_what_a_setting_changes_is_found(
    open_gate: OpenGate, what: str, numerics: Numerics, reason: str | None
) -> None:
    with open_gate("numbers_by_threads.py", what) as gate:
        found = gate.check(ON_THREE_THREADS, numerics)
    assert found is None if reason is None else (found or "").startswith(reason), found


def test_rounding_that_the_training_multiplies_passes_but_a_mistake_does_not(
    open_gate: OpenGate,
) -> None:
    other_order = Configuration(channels_last=True, num_threads=3)
    with open_gate("numbers_conv.py") as gate:
        assert gate.check(other_order, Numerics.REORDERED) is None
    with open_gate("numbers_conv.py", "wrong") as gate:
        reason = gate.check(other_order, Numerics.REORDERED)
    assert reason is not None
    assert reason.startswith("at step 1 the gradient of 4.weight differs by 5 %")


@pytest.mark.slow
def test_of_slow_steps_fewer_are_compared(open_gate: OpenGate) -> None:
    started_s = monotonic()
    with open_gate("numbers_slow.py", num_steps=20, budget_s=1.5) as gate:
        assert gate.check(AS_IT_IS, Numerics.EXACT) is None
    # Three runs of three steps, and not of twenty.
    assert monotonic() - started_s < 40.0


def test_a_run_that_hangs_is_a_reason_too_and_no_file_is_left(
    open_gate: OpenGate, launcher: Launcher
) -> None:
    before = set(launcher.folder.iterdir())
    with open_gate("numbers_by_threads.py", "hangs", time_limit_s=4.0) as gate:
        found = gate.check(ON_THREE_THREADS, Numerics.REORDERED)
        assert set(launcher.folder.iterdir()) > before
    assert found == ("while its numbers were recorded: did not get through its steps within 4 s")
    assert set(launcher.folder.iterdir()) <= before

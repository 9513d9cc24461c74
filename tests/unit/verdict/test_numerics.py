from __future__ import annotations

import math
from typing import Any

import pytest

from breakeven.verdict import (
    Difference,
    DifferenceKind,
    Numerics,
    RecordedNumbers,
    StepNumbers,
    compare_numbers,
)
from factories.numbers import numbers_of, step_of

WEIGHT, BIAS = [1.0, -2.0, 0.5, 0.25], [3.0, 1.0]
GRADIENTS = {"layer.weight": WEIGHT, "layer.bias": BIAS}
BASELINE = numbers_of(step_of(0.5, GRADIENTS), step_of(0.4, GRADIENTS), rng=b"drawn")


def with_second(
    loss: float = 0.4, rng: bytes = b"drawn", **gradients: list[float]
) -> RecordedNumbers:
    """Return the baseline with something else in its second step."""
    changed = {f"layer.{name}": values for name, values in gradients.items()}
    return numbers_of(BASELINE.steps[0], step_of(loss, {**GRADIENTS, **changed}), rng=rng)


def scaled(values: list[float], factor: float) -> list[float]:
    return [value * factor for value in values]


def found(candidate: RecordedNumbers, numerics: Numerics, **others: Any) -> Difference:
    difference = compare_numbers(BASELINE, candidate, numerics=numerics, **others)
    assert difference is not None
    return difference


@pytest.mark.parametrize("numerics", Numerics)
def test_a_run_passes_against_itself(numerics: Numerics) -> None:
    assert compare_numbers(BASELINE, BASELINE, numerics=numerics, repeat=BASELINE) is None


def test_the_last_bit_counts_only_where_not_one_bit_may_differ() -> None:
    candidate = with_second(weight=[math.nextafter(1.0, 2.0), *WEIGHT[1:]])
    difference = found(candidate, Numerics.EXACT)
    assert (difference.step, difference.tensor) == (2, "the gradient of layer.weight")
    assert difference.allowed_fraction == 0.0
    assert 0 < difference.difference_fraction < 1e-15
    assert "not one bit" in difference.sentence
    assert compare_numbers(BASELINE, candidate, numerics=Numerics.REORDERED) is None


def test_the_first_tensor_that_differs_is_named_with_both_values() -> None:
    candidate = with_second(bias=scaled(BIAS, 1.031))
    difference = found(candidate, Numerics.REORDERED)
    assert difference.kind is DifferenceKind.GRADIENT
    assert difference.baseline == pytest.approx(math.hypot(*BIAS))
    assert difference.candidate == pytest.approx(1.031 * math.hypot(*BIAS))
    assert difference.difference_fraction == pytest.approx(0.031)
    assert difference.sentence == (
        "at step 2 the gradient of layer.bias differs by 3.1 % (allowed: 0.024 %)"
    )


def test_a_loss_comes_before_the_gradients_and_shows_its_value() -> None:
    difference = found(with_second(loss=-0.4, bias=[0.0, 0.0]), Numerics.REORDERED)
    assert difference.kind is DifferenceKind.LOSS
    assert (difference.baseline, difference.candidate) == (0.4, -0.4)
    assert difference.sentence.startswith("at step 2 the loss differs by 160 %")


def test_lower_precision_may_differ_more_but_not_in_sign() -> None:
    candidate = with_second(weight=scaled(WEIGHT, 1.1))
    assert found(candidate, Numerics.REORDERED).allowed_fraction < 0.01
    assert compare_numbers(BASELINE, candidate, numerics=Numerics.LOWER_PRECISION) is None
    flipped = with_second(weight=scaled(WEIGHT, -1.0))
    assert found(flipped, Numerics.LOWER_PRECISION).difference_fraction == pytest.approx(2.0)


def test_double_precision_is_held_to_more_digits() -> None:
    one = numbers_of(step_of(0.5, {"weight": WEIGHT}, "float64"))
    other = numbers_of(step_of(0.5, {"weight": scaled(WEIGHT, 1 + 1e-7)}, "float64"))
    difference = compare_numbers(one, other, numerics=Numerics.REORDERED)
    assert difference is not None
    assert difference.allowed_fraction < 1e-11
    assert "1e-07" in difference.sentence


def test_the_scripts_own_autocast_widens_what_another_order_may_change() -> None:
    candidate = numbers_of(step_of(0.5, {**GRADIENTS, "layer.bias": scaled(BIAS, 1.01)}))
    plain, own = (numbers_of(BASELINE.steps[0], arithmetic=name) for name in ("", "bfloat16"))
    assert compare_numbers(plain, candidate, numerics=Numerics.REORDERED) is not None
    assert compare_numbers(own, candidate, numerics=Numerics.REORDERED) is None


def test_a_gradient_that_is_zero_but_for_rounding_says_nothing() -> None:
    one = numbers_of(step_of(0.5, {"weight": WEIGHT, "bias": [1e-8, -2e-8]}))
    other = numbers_of(step_of(0.5, {"weight": WEIGHT, "bias": [-2e-8, 1e-8]}))
    assert compare_numbers(one, other, numerics=Numerics.REORDERED) is None
    large = numbers_of(step_of(0.5, {"weight": WEIGHT, "bias": [1e-3, 0.0]}))
    assert compare_numbers(one, large, numerics=Numerics.REORDERED) is not None


def test_a_loss_that_cancels_is_judged_by_what_losses_become() -> None:
    one = numbers_of(step_of(1e-8, GRADIENTS), step_of(-0.3, GRADIENTS))
    other = numbers_of(step_of(-2e-8, GRADIENTS), step_of(-0.3, GRADIENTS))
    assert compare_numbers(one, other, numerics=Numerics.REORDERED) is None


def test_not_finite_is_never_allowed_where_the_script_is_finite() -> None:
    candidate = with_second(weight=[math.nan, math.inf, 0.5, 0.25])
    for numerics in Numerics:
        difference = found(candidate, numerics)
        assert difference.kind is DifferenceKind.NOT_FINITE
        assert difference.sentence == (
            "at step 2 the gradient of layer.weight is not finite in 2 places, instead of 0"
        )


def test_another_training_need_only_be_finite() -> None:
    candidate = numbers_of(step_of(7.0, {"other": [1.0]}), rng=b"others")
    assert compare_numbers(BASELINE, candidate, numerics=Numerics.TRAINING) is None


def test_a_gradient_that_is_missing_or_new_is_named() -> None:
    less = numbers_of(step_of(0.5, {"layer.weight": WEIGHT}), BASELINE.steps[1], rng=b"drawn")
    missing = found(less, Numerics.LOWER_PRECISION)
    assert missing.sentence == "at step 1 the gradient of layer.bias is missing"
    new = compare_numbers(less, BASELINE, numerics=Numerics.LOWER_PRECISION)
    assert new is not None
    assert new.sentence == (
        "at step 1 the gradient of layer.bias is there, which it was not before"
    )


def test_other_random_numbers_are_seen() -> None:
    candidate = with_second(rng=b"others")
    for numerics in (Numerics.EXACT, Numerics.REORDERED):
        assert found(candidate, numerics).kind is DifferenceKind.RANDOM_NUMBERS
    assert compare_numbers(BASELINE, candidate, numerics=Numerics.LOWER_PRECISION) is None


def test_a_run_that_ends_earlier_fails_after_what_can_be_compared() -> None:
    shorter = numbers_of(BASELINE.steps[0], rng=b"drawn")
    assert found(shorter, Numerics.REORDERED).sentence == (
        "the run ends after 1 step, instead of 2"
    )


def test_nothing_to_compare_is_not_a_pass() -> None:
    empty = numbers_of(StepNumbers(losses=(), gradients=()))
    difference = compare_numbers(empty, empty, numerics=Numerics.EXACT)
    assert difference is not None
    assert difference.kind is DifferenceKind.NOTHING


def test_a_script_that_does_not_repeat_itself_cannot_be_checked_for_bits() -> None:
    repeat = with_second(weight=scaled(WEIGHT, 1 + 1e-6))
    difference = found(BASELINE, Numerics.EXACT, repeat=repeat)
    assert difference.is_own
    assert difference.sentence.startswith(
        "cannot be checked: two runs of the script as it is differ (at step 2 the gradient of"
    )
    assert compare_numbers(BASELINE, BASELINE, numerics=Numerics.REORDERED, repeat=repeat) is None


def test_the_tolerance_widens_to_three_times_what_the_script_differs_by_itself() -> None:
    repeat = with_second(weight=scaled(WEIGHT, 1.0005))
    inside = with_second(weight=scaled(WEIGHT, 1.0012))
    outside = with_second(weight=scaled(WEIGHT, 1.0017))
    numerics = Numerics.REORDERED
    assert compare_numbers(BASELINE, inside, numerics=numerics) is not None
    assert compare_numbers(BASELINE, inside, numerics=numerics, repeat=repeat) is None
    difference = found(outside, numerics, repeat=repeat)
    assert difference.allowed_fraction == pytest.approx(0.0015)


def test_a_script_that_differs_much_by_itself_fails() -> None:
    repeat = with_second(weight=scaled(WEIGHT, 1.001))
    assert found(BASELINE, Numerics.REORDERED, repeat=repeat).is_own
    drawn = with_second(rng=b"others")
    difference = found(BASELINE, Numerics.REORDERED, repeat=drawn)
    assert difference.is_own
    assert difference.kind is DifferenceKind.RANDOM_NUMBERS


def test_what_moved_weights_do_excuses_no_script_that_differs_from_itself() -> None:
    """The run with moved weights differs by itself as well."""
    own = with_second(weight=scaled(WEIGHT, 1.001))
    moved = with_second(weight=scaled(WEIGHT, 1.0012))
    assert found(BASELINE, Numerics.REORDERED, repeat=own, perturbed=[moved]).is_own


def test_rounding_that_the_training_multiplies_is_allowed_three_times() -> None:
    # Of two such runs the one that differs more.
    perturbed = [with_second(weight=scaled(WEIGHT, factor)) for factor in (1.02, 1.001)]
    inside, outside = (with_second(weight=scaled(WEIGHT, factor)) for factor in (1.05, 1.07))
    numerics = Numerics.REORDERED
    assert compare_numbers(BASELINE, inside, numerics=numerics, perturbed=perturbed) is None
    difference = found(outside, numerics, perturbed=perturbed)
    assert difference.allowed_fraction == pytest.approx(0.06)


def test_a_first_step_that_rounding_alone_decides_cannot_be_checked() -> None:
    wild = {name: scaled(values, 1.5) for name, values in GRADIENTS.items()}
    perturbed = numbers_of(step_of(0.9, wild), step_of(0.9, wild), rng=b"drawn")
    difference = found(BASELINE, Numerics.REORDERED, perturbed=[perturbed])
    assert difference.kind is DifferenceKind.UNDECIDED
    later = numbers_of(BASELINE.steps[0], step_of(0.9, wild), rng=b"drawn")
    assert compare_numbers(BASELINE, later, numerics=Numerics.REORDERED, perturbed=[later]) is None

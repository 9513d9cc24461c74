"""What the comparison lets pass, and what it must not, on gradients of any size."""

from __future__ import annotations

import hashlib
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven.capture.sessions.numbers import tensor_numbers
from breakeven.verdict import Numerics, RecordedNumbers, StepNumbers, compare_numbers

SEEDS = st.integers(0, 2**32 - 1)
SCALES = st.sampled_from([1e-6, 1e-3, 1.0, 1e4])
NUM_TENSORS = 4


def terms(seed: int, scale: float) -> list[torch.Tensor]:
    """Return the terms that each gradient sums over: (terms, rows, columns)."""
    generator = torch.Generator().manual_seed(seed)
    chooser = random.Random(seed)
    return [
        scale
        * chooser.uniform(0.1, 1.0)
        * (0.2 + torch.randn(64, chooser.choice([1, 7, 150]), 33, generator=generator))
        for _ in range(NUM_TENSORS)
    ]


def recorded(gradients: list[torch.Tensor], rng: bytes = b"") -> RecordedNumbers:
    """Return a recording of one step with these gradients."""
    step = StepNumbers(
        losses=(tensor_numbers(gradients[0].mean(), key="loss1", name="the loss"),),
        gradients=tuple(
            tensor_numbers(gradient, key=f"optimizer0.group0.{index}", name=f"layer{index}")
            for index, gradient in enumerate(gradients)
        ),
    )
    return RecordedNumbers(steps=(step,), rng_digest=hashlib.sha256(rng).digest())


def sums(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    return [part.sum(0) for part in parts]


def one_by_one(part: torch.Tensor) -> torch.Tensor:
    """Sum term after term, which rounds at each."""
    total = torch.zeros_like(part[0])
    for term in part:
        total = total + term
    return total


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, scale=SCALES)
def test_sums_in_another_order_pass(seed: int, scale: float) -> None:
    parts = terms(seed, scale)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(seed))
    other = recorded([one_by_one(part[order]) for part in parts])
    baseline = recorded(sums(parts))
    assert compare_numbers(baseline, other, numerics=Numerics.REORDERED) is None
    assert compare_numbers(baseline, other, numerics=Numerics.EXACT) is not None


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, scale=SCALES)
def test_terms_rounded_to_bfloat16_pass_as_lower_precision_alone(seed: int, scale: float) -> None:
    parts = terms(seed, scale)
    baseline = recorded(sums(parts))
    other = recorded([part.bfloat16().float().sum(0) for part in parts])
    assert compare_numbers(baseline, other, numerics=Numerics.LOWER_PRECISION) is None
    assert compare_numbers(baseline, other, numerics=Numerics.REORDERED) is not None


def flip_sign(parts: list[torch.Tensor], which: int) -> list[torch.Tensor]:
    return [-total if index == which else total for index, total in enumerate(sums(parts))]


def drop_term(parts: list[torch.Tensor], which: int) -> list[torch.Tensor]:
    return [part[1:].sum(0) if index == which else part.sum(0) for index, part in enumerate(parts)]


def scale_up(parts: list[torch.Tensor], which: int) -> list[torch.Tensor]:
    return [1.05 * total if index == which else total for index, total in enumerate(sums(parts))]


def set_nan(parts: list[torch.Tensor], which: int) -> list[torch.Tensor]:
    totals = sums(parts)
    totals[which].view(-1)[-1] = float("nan")
    return totals


def swap(parts: list[torch.Tensor], which: int) -> list[torch.Tensor]:
    totals = sums(parts)
    totals[which] = totals[which].roll(1, -1)
    return totals


MISTAKES = [flip_sign, drop_term, scale_up, set_nan, swap]
GROSS = [flip_sign, set_nan, swap]


@pytest.mark.parametrize("mistake", MISTAKES)
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, scale=SCALES, which=st.integers(0, NUM_TENSORS - 1))
def test_mistakes_fail_and_are_found_where_they_are(
    mistake: object, seed: int, scale: float, which: int
) -> None:
    assert callable(mistake)
    parts = terms(seed, scale)
    baseline, wrong = recorded(sums(parts)), recorded(mistake(parts, which))
    classes = [Numerics.EXACT, Numerics.REORDERED]
    if mistake in GROSS:
        classes.append(Numerics.LOWER_PRECISION)
    for numerics in classes:
        difference = compare_numbers(baseline, wrong, numerics=numerics)
        assert difference is not None
        assert difference.tensor in (f"the gradient of layer{which}", "the loss")


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, data=st.data())
def test_one_bit_anywhere_fails_as_exact(seed: int, data: st.DataObject) -> None:
    totals = sums(terms(seed, 1.0))
    baseline = recorded(totals)
    which = data.draw(st.integers(0, NUM_TENSORS - 1))
    flat = totals[which].view(-1).view(torch.int32)
    flat[data.draw(st.integers(0, len(flat) - 1))] ^= 1 << data.draw(st.integers(0, 31))
    assert compare_numbers(baseline, recorded(totals), numerics=Numerics.EXACT) is not None


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 200), columns=st.integers(1, 600), data=st.data())
def test_a_wrong_column_of_any_matrix_is_seen(rows: int, columns: int, data: st.DataObject) -> None:
    gradient = torch.ones(rows, columns)
    baseline = recorded([gradient])
    gradient[:, data.draw(st.integers(0, columns - 1))] *= -1
    wrong = recorded([gradient])
    assert compare_numbers(baseline, wrong, numerics=Numerics.REORDERED) is not None

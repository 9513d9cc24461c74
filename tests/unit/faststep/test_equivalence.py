"""When a compiled step's parameters are those of the stock step but for rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from faststep import FastStepError, fast_step
from faststep.generated_step import GeneratedStep
from faststep.step_difference import Change, Other, find_difference
from faststep.tolerance import step_tolerance

_TOLERANCE = step_tolerance(["float32"])
LOSSES = (torch.tensor(1.0), torch.tensor(1.0))


def change(name: str, grad: list[float], compiled: list[float] | None = None) -> Change:
    """A step of Adam's kind: each parameter whose gradient is not zero moves by 0.1."""
    gradient = torch.tensor(grad)
    before = torch.ones_like(gradient)
    stock = before - 0.1 * gradient.sign()
    found = stock if compiled is None else torch.tensor(compiled)
    return Change(name=name, before=before, stock=stock, compiled=found, grad=gradient)


def found(*changes: Change) -> str | None:
    return find_difference(LOSSES, [changes], (), _TOLERANCE)


WEIGHT = change("weight", [0.5, -0.3, 0.2])


def test_equal_steps_do_not_differ() -> None:
    assert found(WEIGHT, change("bias", [1e-9, 0.0])) is None
    assert found() is None


def test_what_has_no_gradient_must_stay() -> None:
    """As the rows of an embedding that are not in the batch."""
    moved = change("rows", [0.4, 0.0, -0.2], [0.9, 0.9, 1.1])
    assert found(WEIGHT, moved) == "the parameter rows, where its gradient is zero"
    unused = change("unused", [0.0, 0.0], [0.9, 1.0])
    assert found(WEIGHT, unused) == "the parameter unused, where its gradient is zero"


def test_what_has_gradients_of_rounding_alone_may_move_either_way() -> None:
    """As a bias before a normalisation, of a network so small that it counts for something."""
    weight = change("weight", [0.1])
    assert found(weight, change("bias", [5e-6] * 8, [0.9, 1.1] * 4)) is None
    too_far = change("bias", [5e-6] * 8, [0.9, 1.2] * 4)
    assert str(found(weight, too_far)).startswith("the parameter bias")
    small = change("bias", [3e-5] * 8, [0.9, 1.1] * 4)
    assert str(found(weight, small)).startswith("the parameter bias")


def test_a_zero_among_gradients_that_are_rounding_may_be_rounding() -> None:
    """As of a bias before a normalisation, which one of two sums leaves at exactly zero."""
    assert found(WEIGHT, change("bias", [1e-9, 0.0, -3e-9], [0.9, 1.1, 0.9])) is None
    assert found(WEIGHT, change("bias", [0.0, 0.0, -3e-9], [0.9, 1.1, 0.9])) is None


def test_rounding_may_lie_beside_gradients_that_count() -> None:
    """As of attention: the keys' bias has none, and is one tensor with the queries'."""
    packed = change("in_proj_bias", [0.2, 0.3, 1e-9, 0.0], [0.9, 0.9, 0.9, 0.9])
    assert found(WEIGHT, packed) is None


@pytest.mark.parametrize(
    ("grad", "compiled"),
    [
        # Most of the tensor has none, and others count.
        ([0.2, 1e-9, 0.0, 0.0], [0.9, 0.9, 0.9, 1.0]),
        # It moves further than a step.
        ([1e-9, 2e-9, 0.0], [0.9, 0.9, 0.5]),
        # More move than gradients are rounding.
        ([0.2, 0.3, -0.1, 1e-9, 0.0, 0.0], [0.9, 0.9, 1.1, 0.9, 1.1, 1.1]),
        # The gradients beside it are no rounding.
        ([1e-3, 1e-3, 0.0], [0.9, 0.9, 0.9]),
    ],
)
def test_other_zeros_must_stay(grad: list[float], compiled: list[float]) -> None:
    moved = change("rows", grad, compiled)
    assert found(WEIGHT, moved) == "the parameter rows, where its gradient is zero"


def test_a_gradient_that_counts_must_move_its_parameter_as_it_did() -> None:
    wrong = change("weight", [0.5, -0.3, 0.2], [0.9, 1.1, 0.95])
    answer = found(wrong)
    assert answer is not None
    assert answer.startswith("the parameter weight (0.95, not 0.9")


def with_mean(one: Change, stock: float, compiled: float) -> Change:
    """A parameter of which its optimizer keeps one number."""
    kept = Other("mean", f"mean of {one.name}", torch.tensor([stock]), torch.tensor([compiled]))
    return replace(one, states=(kept,))


def test_gradients_are_rounding_beside_those_of_the_same_optimizer() -> None:
    large, small = change("large", [5e4]), change("small", [1e-3], [1.1])
    assert find_difference(LOSSES, [[large, small]], (), _TOLERANCE) is None
    answer = find_difference(LOSSES, [[large], [small]], (), _TOLERANCE)
    assert str(answer).startswith("the parameter small")


def test_what_an_optimizer_keeps_is_held_against_the_largest_that_it_keeps() -> None:
    large, small = with_mean(change("large", [0.5]), 1e5, 1e5), change("small", [0.5])
    small = with_mean(small, 1e-3, 2e-3)
    assert find_difference(LOSSES, [[large, small]], (), _TOLERANCE) is None
    answer = find_difference(LOSSES, [[large], [small]], (), _TOLERANCE)
    assert answer == "mean of small (0.002, not 0.001)"


def test_a_buffer_differs_where_all_parameters_agree() -> None:
    buffer = Other("buffer", "buffer count", torch.tensor(3), torch.tensor(4))
    answer = find_difference(LOSSES, [[WEIGHT]], (buffer,), _TOLERANCE)
    assert answer == "buffer count (4, not 3)"


# How far a step may be off where the stock step itself multiplies rounding.
X = torch.linspace(-1, 1, 64).reshape(16, 4)


def step_that_is_off(
    monkeypatch: pytest.MonkeyPatch, relative: float, *, distance: float
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Return a network with a step of which a compiled one's loss is off by that much.

    Args:
        monkeypatch: Pytest's.
        relative: By how much.
        distance: Of the network's output from its target: where it is small, rounding is much.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    target = model(X).detach() + distance
    original = GeneratedStep.on_copies

    def on_copies(self: GeneratedStep, *args: Any) -> Any:
        (loss, *beside), results = original(self, *args)
        return (loss * (1 + relative), *beside), results

    monkeypatch.setattr(GeneratedStep, "on_copies", on_copies)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    step = fast_step(
        model,
        lambda output, target: ((output - target) / distance).square().mean(),
        optimizer,
        engine="generated",
    )
    return model, lambda: step(X, target)


def test_a_network_that_multiplies_rounding_may_be_off_by_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, step = step_that_is_off(monkeypatch, 2.5e-4, distance=1e-3)
    weight = next(model.parameters())
    before = weight.detach().clone()
    assert [step().isfinite() for _ in range(3)]
    assert torch.allclose(weight, before, rtol=1e-3), "the moved weights are put back"


@pytest.mark.parametrize(("relative", "distance"), [(2.5e-4, 1.0), (2e-3, 1e-3)])
def test_others_may_not_and_none_by_more_than_ten_times(
    monkeypatch: pytest.MonkeyPatch, relative: float, distance: float
) -> None:
    model, step = step_that_is_off(monkeypatch, relative, distance=distance)
    step()
    before = [param.detach().clone() for param in model.parameters()]
    with pytest.raises(FastStepError, match=r"something else than the stock step: the loss"):
        step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))

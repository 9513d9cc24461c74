"""How far a compiled step may be off where the stock step itself multiplies rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from breakeven import fast_step
from faststep import FastStepError
from faststep.generated_step import GeneratedStep

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

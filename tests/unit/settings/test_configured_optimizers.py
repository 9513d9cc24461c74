"""Optimizers made with another implementation, and those that are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from breakeven.settings import configured
from breakeven.trace import Configuration


def parameters() -> list[nn.Parameter]:
    return list(nn.Linear(3, 2).parameters())


def switches(optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    return optimizer.defaults.get("foreach"), optimizer.defaults.get("fused")


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_choice_is_made_if_the_script_makes_none(kind: Any) -> None:
    with configured(Configuration(optimizer="fused")) as settings:
        first = kind(parameters(), lr=0.1)
        # By position, and of a generator of groups.
        second = kind(({"params": iter(parameters())} for _ in range(2)), 0.1)
        third = kind(nn.Linear(3, 2).named_parameters(), lr=0.1)
    assert [switches(each) for each in (first, second, third)] == [(None, True)] * 3
    assert sum(len(group["params"]) for group in second.param_groups) == 4
    assert settings.effects() == {"optimizer": 3}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda p: torch.optim.Adam(p, fused=False), id="fused=False"),
        pytest.param(lambda p: torch.optim.AdamW(p, foreach=True), id="foreach"),
        pytest.param(
            lambda p: torch.optim.SGD(p, lr=0.1, differentiable=True), id="differentiable"
        ),
        pytest.param(lambda p: torch.optim.RMSprop(p), id="class without fused"),
        pytest.param(lambda p: torch.optim.LBFGS(p), id="class without a choice"),
        pytest.param(lambda p: NotOfTorch(p), id="class of another package"),
    ],
)
def test_what_the_script_asks_for_stays(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    plain = make(parameters())
    with configured(Configuration(optimizer="fused")) as settings:
        inside = make(parameters())
    assert switches(inside) == switches(plain)
    assert settings.effects() == {"optimizer": 0}


def test_other_options_are_handed_on() -> None:
    with configured(Configuration(optimizer="fused")):
        optimizer = torch.optim.Adam(parameters(), 0.5, maximize=True, capturable=False)
    assert optimizer.defaults["lr"] == 0.5
    assert optimizer.defaults["maximize"] is True
    assert optimizer.defaults["fused"] is True


class OwnUpdate(torch.optim.Adam):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update by a rule of its own, to which the fused kernel means nothing."""


class NotOfTorch(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "fused": None})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update by a rule of its own."""


class OwnDefaults(torch.optim.Adam):
    def __init__(self, params: Any, lr: float = 0.25) -> None:
        super().__init__(params, lr=lr)


def test_subclass_is_chosen_for_only_where_it_updates_as_its_base_does() -> None:
    with configured(Configuration(optimizer="fused")) as settings:
        assert switches(OwnUpdate(parameters()))[1] is None
        for _ in range(2):
            own = OwnDefaults(parameters())
            assert switches(own)[1] is True
        assert own.defaults["lr"] == 0.25
        assert switches(torch.optim.Adam(parameters()))[1] is True
    assert settings.effects() == {"optimizer": 3}


def test_parameters_that_no_fused_kernel_takes_are_left_to_the_default() -> None:
    numbers = [nn.Parameter(torch.ones(2, dtype=torch.complex64))]
    with configured(Configuration(optimizer="fused")) as settings:
        optimizer = torch.optim.Adam(numbers)
        numbers[0].grad = torch.ones_like(numbers[0])
        optimizer.step()
    assert settings.effects() == {"optimizer": 0}


def test_errors_are_those_of_torch() -> None:
    with configured(Configuration(optimizer="fused")):
        with pytest.raises(ValueError, match="empty parameter list"):
            torch.optim.Adam([])
        with pytest.raises(TypeError, match="unexpected keyword"):
            torch.optim.Adam(parameters(), speed=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="params argument"):
            torch.optim.Adam(torch.ones(2))  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            torch.optim.Adam()  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_trained_weights_are_those_of_the_default_but_for_rounding(kind: Any) -> None:
    def weights(configuration: Configuration) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        with configured(configuration):
            optimizer = kind(model.parameters(), lr=0.01, weight_decay=0.1)
            for _ in range(5):
                optimizer.zero_grad()
                model(torch.ones(2, 5)).square().sum().backward()
                optimizer.step()
        return model.weight.detach()

    expected = weights(Configuration())
    assert torch.allclose(weights(Configuration(optimizer="fused")), expected, rtol=1e-5)

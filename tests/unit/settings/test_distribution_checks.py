"""Distributions test their arguments only where a script asks for it."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Distribution, Normal

from breakeven.capture import record_steps
from breakeven.settings import configured
from breakeven.trace import Configuration
from factories.steps_facts import mlp

UNCHECKED = Configuration(skips_distribution_checks=True)
WRONG = torch.tensor(-1.0)


def test_arguments_are_tested_again_afterwards() -> None:
    with configured(UNCHECKED) as settings:
        Normal(0.0, WRONG)
        assert settings.effects() == {"skips_distribution_checks": 1}
    with pytest.raises(ValueError, match="scale"):
        Normal(0.0, WRONG)


def test_what_a_script_asks_for_is_tested() -> None:
    with configured(UNCHECKED) as settings:
        with pytest.raises(ValueError, match="scale"):
            Normal(0.0, WRONG, validate_args=True)
        Distribution.set_default_validate_args(True)
        with pytest.raises(ValueError, match="scale"):
            Normal(0.0, WRONG)
        assert settings.effects() == {"skips_distribution_checks": 0}


def test_values_are_the_same() -> None:
    policy = Normal(torch.rand(5), torch.rand(5) + 0.1)
    expected = policy.log_prob(torch.ones(5))
    with configured(UNCHECKED):
        found = Normal(policy.loc, policy.scale).log_prob(torch.ones(5))
    assert torch.equal(found, expected)


def test_recorded_step_shows_how_many_arguments_are_tested() -> None:
    with record_steps() as recording:
        weight = torch.ones(3, device="cuda", requires_grad=True)
        value = torch.ones(3, device="cuda")
        optimizer = torch.optim.SGD([weight])
        for _ in range(3):
            optimizer.zero_grad()
            Normal(weight, weight.exp()).log_prob(value).sum().backward()
            optimizer.step()
    facts = mlp(events=recording.trace.events)
    assert facts.num_distribution_checks == 3  # mean, deviation and value

"""Steps that update with several optimizers: all of it is one call, with the loop's numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from faststep import FallbackStep, FastStep, FastStepError, fast_step
from faststep.generated_step import GeneratedStep

NUM_STEPS = 6
Kind = Callable[..., torch.optim.Optimizer]


class Agent:
    """An actor and a critic whose losses share the drawn actions, and a target of the critic.

    Args:
        kind: Of both optimizers.
    """

    def __init__(self, kind: Kind = torch.optim.Adam) -> None:
        torch.manual_seed(1)
        self.actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.target = copy.deepcopy(self.critic)
        self.critic_optimizer = kind(self.critic.parameters(), lr=0.01)
        self.actor_optimizer = kind(self.actor.parameters(), lr=0.02)
        self.clears_critic = True

    @property
    def models(self) -> list[nn.Module]:
        return [self.actor, self.critic, self.target]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.critic_optimizer, self.actor_optimizer]

    def act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(states).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        drawn = normal.rsample()
        return drawn, normal.log_prob(drawn).sum(dim=1, keepdim=True)

    def update(self, states: Tensor, actions: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
        own, log_prob = self.act(states)
        with torch.no_grad():
            other, _ = self.act(states + 1)
            wanted = rewards + 0.9 * self.target(torch.cat((states + 1, other), dim=1))
        value = self.critic(torch.cat((states, actions), dim=1))
        critic_loss = (value - wanted).square().mean()
        if self.clears_critic:
            self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        # Its gradients reach the critic as well, and are cleared in the next step.
        actor_loss = (0.2 * log_prob - self.critic(torch.cat((states, own), dim=1))).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        nn.utils.clip_grad_norm_(self.actor.parameters(), 0.5)
        self.actor_optimizer.step()
        with torch.no_grad():
            for target, param in zip(
                self.target.parameters(), self.critic.parameters(), strict=True
            ):
                target.mul_(1 - 0.05)
                target.add_(0.05 * param)
        return critic_loss, actor_loss

    def fast(self, **options: Any) -> FastStep:
        return fast_step(self.models, self.update, self.optimizers, has_aux=True, **options)

    def numbers(self) -> list[Tensor]:
        params = [param for model in self.models for param in model.parameters()]
        states = [
            value
            for optimizer in self.optimizers
            for state in optimizer.state.values()
            for value in state.values()
        ]
        return [one.detach().clone() for one in (*params, *states, torch.get_rng_state())]


def batches() -> list[tuple[Tensor, Tensor, Tensor]]:
    made = torch.Generator().manual_seed(2)
    return [
        tuple(torch.randn(16, size, generator=made) for size in (4, 2, 1)) for _ in range(NUM_STEPS)
    ]


def in_a_loop(agent: Agent) -> list[tuple[float, float]]:
    torch.manual_seed(3)
    return [tuple(loss.item() for loss in agent.update(*batch)) for batch in batches()]


def in_calls(step: Any) -> list[tuple[float, float]]:
    torch.manual_seed(3)
    return [tuple(loss.item() for loss in step(batch)) for batch in batches()]


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    for number, (value, other) in enumerate(zip(found, wanted, strict=True)):
        torch.testing.assert_close(
            value, other, rtol=1e-3, atol=1e-5, msg=lambda m, n=number: f"tensor {n}: {m}"
        )


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_one_generated_call_does_what_the_loop_does(kind: Kind) -> None:
    looped, called = Agent(kind), Agent(kind)
    losses = in_a_loop(looped)
    wanted = looped.numbers()
    step = called.fast(engine="generated")
    torch.testing.assert_close(torch.tensor(in_calls(step)), torch.tensor(losses))
    assert step.engine == "generated C"
    assert_same(called.numbers(), wanted)  # the random numbers after it, too


def test_the_loop_goes_on_after_it_with_the_same_state() -> None:
    looped, called = Agent(), Agent()
    in_a_loop(looped)
    in_a_loop(looped)
    in_calls(called.fast())
    in_a_loop(called)
    assert_same(called.numbers(), looped.numbers())


def test_a_target_that_stays_behind_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves by less than the rounding that is allowed beside its values."""
    on_copies = GeneratedStep.on_copies

    agent = Agent()
    step = agent.fast()
    step(batches()[0])
    stays = [one.detach().clone() for one in agent.target.parameters()]
    for param, one in zip(agent.critic.parameters(), stays, strict=True):
        param.data.copy_(one + 1e-4)  # a short way
    before = agent.numbers()
    del before[-1]

    def without_target(self: GeneratedStep, params: Any, *args: Any) -> Any:
        kept = [one.clone() for one in params.arguments]
        results, copies = on_copies(self, params, *args)
        first = len(params.trained)
        last = first + len(params.fixed_names)
        return results, (*copies[:first], *kept[first:last], *copies[last:])

    monkeypatch.setattr(GeneratedStep, "on_copies", without_target)
    with pytest.raises(FastStepError, match="which no optimizer holds"):
        step(batches()[1])
    assert_same(agent.numbers()[:-1], before)


def test_gradients_from_the_step_before_are_refused_and_put_back() -> None:
    agent = Agent()
    agent.clears_critic = False
    before = agent.numbers()
    grads = [torch.ones_like(param) for param in agent.critic.parameters()]
    for param, grad in zip(agent.critic.parameters(), grads, strict=True):
        param.grad = grad
    with pytest.raises(FastStepError, match="not cleared before the update"):
        agent.fast()(batches()[0])
    assert_same(agent.numbers()[:-1], before[:-1])
    assert all(p.grad is g for p, g in zip(agent.critic.parameters(), grads, strict=True))


def test_a_loop_that_cannot_be_compiled_goes_on_as_it_was() -> None:
    looped, called = Agent(), Agent()
    looped.clears_critic = called.clears_critic = False
    losses = in_a_loop(looped)
    told: list[str] = []
    step = FallbackStep(
        called.models, called.update, called.optimizers, has_aux=True, on_given_up=told.append
    )
    assert in_calls(step) == losses
    assert len(told) == 1
    assert "not cleared" in told[0]
    for value, other in zip(called.numbers(), looped.numbers(), strict=True):
        assert torch.equal(value, other)


def test_methods_of_the_optimizers_are_their_own_again() -> None:
    agent = Agent()
    scheduler = torch.optim.lr_scheduler.StepLR(agent.actor_optimizer, 1)
    method = agent.actor_optimizer.__dict__["step"]
    in_calls(agent.fast())
    assert agent.actor_optimizer.__dict__["step"] is method
    assert "step" not in agent.critic_optimizer.__dict__
    assert "zero_grad" not in agent.critic.__dict__
    scheduler.step()  # warns where no update was told of


def test_a_state_that_is_loaded_is_noticed() -> None:
    looped, called = Agent(), Agent()
    step = called.fast()
    for agent in (looped, called):
        torch.manual_seed(3)
        do: Any = agent.update if agent is looped else lambda *batch: step(batch)
        for number, batch in enumerate(batches()):
            if number == 3:
                for optimizer in agent.optimizers:
                    state = copy.deepcopy(optimizer.state_dict())
                    for one in state["state"].values():
                        one["exp_avg"].zero_()
                    optimizer.load_state_dict(state)
            do(*batch)
    assert_same(called.numbers(), looped.numbers())


def _twice(agent: Agent, *batch: Tensor) -> tuple[Tensor, Tensor]:
    results = agent.update(*batch)
    agent.critic_optimizer.step()
    return results


def test_what_is_no_plain_update_is_refused() -> None:
    agent = Agent()
    before = agent.numbers()[:-1]
    step = fast_step(
        agent.models, lambda *batch: _twice(agent, *batch), agent.optimizers, has_aux=True
    )
    with pytest.raises(FastStepError, match="2 times with optimizer 0"):
        step(batches()[0])
    assert_same(agent.numbers()[:-1], before)
    mixed = [agent.critic_optimizer, torch.optim.SGD(agent.actor.parameters(), lr=0.1)]
    with pytest.raises(FastStepError, match="several kinds"):
        fast_step(agent.models, agent.update, mixed)
    with pytest.raises(FastStepError, match="not the model's"):
        fast_step([agent.critic], agent.update, agent.optimizers)
    with pytest.raises(FastStepError, match="need calls_model=True"):
        fast_step([agent.critic], agent.update, agent.critic_optimizer)
    with pytest.raises(FastStepError, match="no max_grad_norm"):
        agent.fast(max_grad_norm=1.0)
    with pytest.raises(FastStepError, match=r"nn\.Module"):
        fast_step([agent.critic, 3], agent.update, agent.optimizers)

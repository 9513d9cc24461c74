"""``train`` of DQN, TD3, DDPG and SAC by whole steps, one for each optimizer of an agent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from faststep.engines import Engine
from faststep.errors import FastStepError
from faststep.sb3.agent_steps import AgentLoss, AgentStep, as_it_was, unpack_replay


class _CriticLoss(AgentLoss):
    """The critics' loss; subclasses define the target value after a transition."""

    share = 1.0

    def forward(
        self,
        observations: Any,
        actions: Tensor,
        next_observations: Any,
        dones: Tensor,
        rewards: Tensor,
        discounts: Tensor | None,
        noise: Tensor,
    ) -> tuple[Tensor, tuple[()]]:
        """Return the loss and no logged values."""
        gamma, number = self.numbers.unbind()
        with torch.no_grad():
            following = self.following(next_observations, noise, number)
            wanted = rewards + (1 - dones) * (gamma if discounts is None else discounts) * following
        found = self.policy.critic(observations, actions)
        losses = [nn.functional.mse_loss(values, wanted) for values in found]
        return self.share * torch.stack(losses).sum(), ()

    def following(self, observations: Any, noise: Tensor, number: Tensor) -> Tensor:
        """Return the target networks' value of the next state."""
        raise NotImplementedError

    def least(self, observations: Any, actions: Tensor) -> Tensor:
        """Return the minimum of the target critics' values."""
        values = self.policy.critic_target(observations, actions)
        return torch.cat(values, dim=1).min(dim=1, keepdim=True).values


class _Td3CriticLoss(_CriticLoss):
    def following(self, observations: Any, noise: Tensor, number: Tensor) -> Tensor:
        actions = self.policy.actor_target(observations) + noise.clamp(-number, number)
        return self.least(observations, actions.clamp(-1, 1))


class _Td3ActorLoss(AgentLoss):
    def forward(self, observations: Any) -> tuple[Tensor, tuple[()]]:
        """Return the loss and no logged values."""
        actions = self.policy.actor(observations)
        return -self.policy.critic.q1_forward(observations, actions).mean(), ()


class Td3Training:
    """``train`` of TD3 and DDPG."""

    def __init__(self, agent: Any, engine: Engine) -> None:
        self._critic = AgentStep(engine)
        self._actor = AgentStep(engine)

    def train(self, agent: Any, gradient_steps: int, batch_size: int = 100) -> None:
        """Do what ``TD3.train`` does."""
        policy = agent.policy
        policy.set_training_mode(True)
        agent._update_learning_rate([agent.actor.optimizer, agent.critic.optimizer])
        train_critic = self._critic.prepare(
            lambda: _Td3CriticLoss(policy, 2), policy, agent.critic.optimizer
        )
        train_actor = self._actor.prepare(
            lambda: _Td3ActorLoss(policy, 0), policy, agent.actor.optimizer
        )
        self._critic.loss.set_numbers(agent.gamma, agent.target_noise_clip)
        critic_losses: list[float] = []
        actor_losses: list[float] = []
        for _ in range(gradient_steps):
            agent._n_updates += 1
            data = agent.replay_buffer.sample(batch_size, env=agent._vec_normalize_env)
            noise = torch.empty_like(data.actions).normal_(0, agent.target_policy_noise)
            loss, _ = train_critic((*unpack_replay(data), noise), ())
            critic_losses.append(loss.item())
            if agent._n_updates % agent.policy_delay == 0:
                loss, _ = train_actor((data.observations,), ())
                actor_losses.append(loss.item())
                _follow(agent.critic, agent.critic_target, agent.tau)
                _follow(agent.actor, agent.actor_target, agent.tau)
                _copy(agent.critic_batch_norm_stats, agent.critic_batch_norm_stats_target)
                _copy(agent.actor_batch_norm_stats, agent.actor_batch_norm_stats_target)
        record = agent.logger.record
        record("train/n_updates", agent._n_updates, exclude="tensorboard")
        if actor_losses:
            record("train/actor_loss", np.mean(actor_losses))
        record("train/critic_loss", np.mean(critic_losses))


@torch.no_grad()
def _follow(network: nn.Module, target: nn.Module, tau: float) -> None:
    """Move a target network's parameters towards the network's, as SB3's ``polyak_update`` does."""
    followers = [param.data for param in target.parameters()]
    towards = [param.data for param in network.parameters()]
    torch._foreach_mul_(followers, 1 - tau)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_add_(followers, towards, alpha=tau)  # pyright: ignore[reportPrivateImportUsage]


@torch.no_grad()
def _copy(statistics: Iterable[Tensor], others: Iterable[Tensor]) -> None:
    for one, other in zip(statistics, others, strict=True):
        other.copy_(one)


def _act(actor: Any, observations: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions and log-probabilities, as ``Actor.action_log_prob`` does with this noise."""
    mean, log_std, _ = actor.get_action_dist_params(observations)
    with as_it_was(actor.action_dist):
        spread = actor.action_dist.proba_distribution(mean, log_std)
        before = spread.distribution.mean + noise * spread.distribution.stddev
        actions = before.tanh()
        return actions, spread.log_prob(actions, before).reshape(-1, 1)


class _SacCriticLoss(_CriticLoss):
    share = 0.5

    def following(self, observations: Any, noise: Tensor, number: Tensor) -> Tensor:
        actions, log_prob = _act(self.policy.actor, observations, noise)
        return self.least(observations, actions) - number * log_prob


class _SacActorLoss(AgentLoss):
    def forward(self, observations: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and the mean of the log-probabilities."""
        actions, log_prob = _act(self.policy.actor, observations, noise)
        values = torch.cat(self.policy.critic(observations, actions), dim=1)
        least = values.min(dim=1, keepdim=True).values
        return (self.numbers * log_prob - least).mean(), log_prob.mean()


class _Temperature(nn.Module):
    """The loss of SAC's entropy coefficient."""

    log_ent_coef: Tensor

    def __init__(self, log_ent_coef: Any) -> None:
        super().__init__()
        # Register the optimizer's tensor directly: it is not an nn.Parameter.
        self._parameters["log_ent_coef"] = log_ent_coef

    def forward(self, excess: Tensor) -> tuple[Tensor, tuple[()]]:
        """Return the loss for the mean log-probability plus the target entropy; log nothing."""
        return -(self.log_ent_coef * excess).mean(), ()


class SacTraining:
    """``train`` of SAC."""

    def __init__(self, agent: Any, engine: Engine) -> None:
        if agent.use_sde:
            raise FastStepError("fast_sb3 cannot train a SAC with use_sde=True")
        if any("running_" in name for name, _ in agent.policy.named_buffers()):
            raise FastStepError(
                "fast_sb3 cannot train a SAC whose networks keep running statistics",
                hint="They would see the batches in another order than SAC's own.",
            )
        self._critic = AgentStep(engine)
        self._actor = AgentStep(engine)
        self._temperature = AgentStep(engine)

    def train(self, agent: Any, gradient_steps: int, batch_size: int = 64) -> None:
        """Do what ``SAC.train`` does, but update the entropy coefficient last."""
        policy, coef_optimizer = agent.policy, agent.ent_coef_optimizer
        policy.set_training_mode(True)
        optimizers = [agent.actor.optimizer, agent.critic.optimizer]
        agent._update_learning_rate([*optimizers, coef_optimizer] if coef_optimizer else optimizers)
        train_critic = self._critic.prepare(
            lambda: _SacCriticLoss(policy, 2), policy, agent.critic.optimizer
        )
        train_actor = self._actor.prepare(
            lambda: _SacActorLoss(policy, 1), policy, agent.actor.optimizer
        )
        coefs: list[float] = []
        coef_losses: list[float] = []
        critic_losses: list[float] = []
        actor_losses: list[float] = []
        for number in range(gradient_steps):
            data = agent.replay_buffer.sample(batch_size, env=agent._vec_normalize_env)
            noise, next_noise = (torch.empty_like(data.actions).normal_() for _ in range(2))
            if coef_optimizer is not None:
                coef = agent.log_ent_coef.detach().exp().item()
            else:
                coef = agent.ent_coef_tensor.item()
            coefs.append(coef)
            self._critic.loss.set_numbers(agent.gamma, coef)
            self._actor.loss.set_numbers(coef)
            loss, _ = train_critic((*unpack_replay(data), next_noise), ())
            critic_losses.append(loss.item())
            loss, log_prob = train_actor((data.observations, noise), ())
            actor_losses.append(loss.item())
            if coef_optimizer is not None:
                train_coef = self._temperature.prepare(
                    lambda: _Temperature(agent.log_ent_coef), policy, coef_optimizer
                )
                loss, _ = train_coef(log_prob + agent.target_entropy, ())
                coef_losses.append(loss.item())
            if number % agent.target_update_interval == 0:
                _follow(agent.critic, agent.critic_target, agent.tau)
        agent._n_updates += gradient_steps
        record = agent.logger.record
        record("train/n_updates", agent._n_updates, exclude="tensorboard")
        record("train/ent_coef", np.mean(coefs))
        record("train/actor_loss", np.mean(actor_losses))
        record("train/critic_loss", np.mean(critic_losses))
        if coef_losses:
            record("train/ent_coef_loss", np.mean(coef_losses))


class _DqnLoss(AgentLoss):
    def forward(
        self,
        observations: Any,
        actions: Tensor,
        next_observations: Any,
        dones: Tensor,
        rewards: Tensor,
        discounts: Tensor | None,
    ) -> tuple[Tensor, tuple[()]]:
        """Return the loss and no logged values."""
        if discounts is None:
            discounts = self.numbers[0]
        with torch.no_grad():
            following = self.policy.q_net_target(next_observations)
            following = following.max(dim=1).values.reshape(-1, 1)
            wanted = rewards + (1 - dones) * discounts * following
        values = self.policy.q_net(observations).gather(dim=1, index=actions.long())
        return nn.functional.smooth_l1_loss(values, wanted), ()


class DqnTraining:
    """``train`` of DQN."""

    def __init__(self, agent: Any, engine: Engine) -> None:
        self._step = AgentStep(engine)

    def train(self, agent: Any, gradient_steps: int, batch_size: int = 100) -> None:
        """Do what ``DQN.train`` does."""
        policy, optimizer = agent.policy, agent.policy.optimizer
        policy.set_training_mode(True)
        agent._update_learning_rate(optimizer)
        step = self._step.prepare(
            lambda: _DqnLoss(policy, 1), policy, optimizer, agent.max_grad_norm
        )
        self._step.loss.set_numbers(agent.gamma)
        losses: list[float] = []
        for _ in range(gradient_steps):
            data = agent.replay_buffer.sample(batch_size, env=agent._vec_normalize_env)
            losses.append(step(unpack_replay(data), ())[0].item())
        agent._n_updates += gradient_steps
        agent.logger.record("train/n_updates", agent._n_updates, exclude="tensorboard")
        agent.logger.record("train/loss", np.mean(losses))

"""``train`` of PPO and A2C by whole steps, with the stock batches, random numbers and logs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from faststep.engines import Engine
from faststep.fast import FastStep
from faststep.sb3.agent_steps import AgentLoss, AgentStep, as_it_was
from faststep.stock_step import Snapshot


class _OnPolicyLoss(AgentLoss):
    """The common part of the losses of PPO and A2C."""

    def __init__(self, agent: Any, num_numbers: int) -> None:
        super().__init__(agent.policy, num_numbers)
        self.is_discrete = type(agent.action_space).__name__ == "Discrete"

    def evaluate(self, observations: Any, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return values, log-probabilities, and the entropy loss."""
        if self.is_discrete:
            actions = actions.long().flatten()
        with as_it_was(self.policy.action_dist):
            values, log_prob, entropy = self.policy.evaluate_actions(observations, actions)
        spread = -log_prob if entropy is None else entropy
        return values.flatten(), log_prob, -spread.mean()


def _normalized(advantages: Tensor) -> Tensor:
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


class _PpoLoss(_OnPolicyLoss):
    def __init__(self, agent: Any) -> None:
        super().__init__(agent, 6)
        self.normalizes = agent.normalize_advantage
        self.clips_values = agent.clip_range_vf is not None

    def forward(
        self,
        observations: Any,
        actions: Tensor,
        old_values: Tensor,
        old_log_prob: Tensor,
        advantages: Tensor,
        returns: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the values that PPO logs for a batch."""
        ent_coef, vf_coef, clip_range, lowest, highest, clip_range_vf = self.numbers.unbind()
        values, log_prob, entropy_loss = self.evaluate(observations, actions)
        if self.normalizes and len(advantages) > 1:
            advantages = _normalized(advantages)
        log_ratio = log_prob - old_log_prob
        ratio = log_ratio.exp()
        clipped = advantages * ratio.clamp(lowest, highest)
        policy_loss = -torch.min(advantages * ratio, clipped).mean()
        if self.clips_values:
            change = (values - old_values).clamp(-clip_range_vf, clip_range_vf)
            values = old_values + change
        value_loss = nn.functional.mse_loss(returns, values)
        loss = policy_loss + ent_coef * entropy_loss + vf_coef * value_loss
        clip_fraction = ((ratio - 1).abs() > clip_range).to(ratio.dtype).mean()
        divergence = ((ratio - 1) - log_ratio).mean()
        logged = (policy_loss, value_loss, entropy_loss, clip_fraction, divergence)
        return loss, torch.stack(logged)


class _OnPolicyTraining:
    """The common part of ``train`` of PPO and A2C."""

    def __init__(self, agent: Any, engine: Engine) -> None:
        self._step = AgentStep(engine)

    def _prepare(self, agent: Any, loss: type[_PpoLoss | _A2cLoss], *options: Any) -> FastStep:
        """Prepare an agent for training and return its step; the loss reads the options."""
        policy, optimizer = agent.policy, agent.policy.optimizer
        policy.set_training_mode(True)
        agent._update_learning_rate(optimizer)
        return self._step.prepare(
            lambda: loss(agent), policy, optimizer, agent.max_grad_norm, *options
        )


def _record_spread(agent: Any) -> None:
    if hasattr(agent.policy, "log_std"):
        agent.logger.record("train/std", agent.policy.log_std.detach().exp().mean().item())


class PpoTraining(_OnPolicyTraining):
    """``train`` of PPO."""

    def train(self, agent: Any) -> None:
        """Do what ``PPO.train`` does."""
        clips_values = agent.clip_range_vf is not None
        step = self._prepare(agent, _PpoLoss, agent.normalize_advantage, clips_values)
        progress = agent._current_progress_remaining
        clip_range = agent.clip_range(progress)
        clip_range_vf = agent.clip_range_vf(progress) if clips_values else 0.0
        self._step.loss.set_numbers(
            agent.ent_coef, agent.vf_coef, clip_range, 1 - clip_range, 1 + clip_range, clip_range_vf
        )
        optimizer = agent.policy.optimizer
        most = math.inf if agent.target_kl is None else 1.5 * agent.target_kl
        logged: list[Tensor] = []
        loss, first_of_epoch, is_over = torch.tensor(torch.nan), 0, False
        for epoch in range(agent.n_epochs):
            first_of_epoch = len(logged)
            # Take all samples in the epoch's order as one batch, and split it.
            data = next(agent.rollout_buffer.get(None))
            # The last batch may be shorter.
            leaves, spec = pytree.tree_flatten(tuple(data))
            for part in zip(*(leaf.split(agent.batch_size) for leaf in leaves), strict=True):
                batch = pytree.tree_unflatten(list(part), spec)
                before = Snapshot(agent.policy, None, optimizer) if most < math.inf else None
                loss, numbers = step(batch, ())
                logged.append(numbers)
                if before is not None and numbers[-1].item() > most:
                    # Undo the update: the stock algorithm stops before it.
                    before.restore()
                    is_over = True
                    if agent.verbose >= 1:
                        print(  # noqa: T201 - as PPO says it
                            f"Early stopping at step {epoch} due to reaching max kl: "
                            f"{numbers[-1].item():.2f}"
                        )
                    break
            agent._n_updates += 1
            if is_over:
                break
        table = torch.stack(logged).cpu().numpy()
        policy_loss, value_loss, entropy_loss, clip_fraction = table[:, :4].astype(float).mean(0)
        record = agent.logger.record
        record("train/entropy_loss", entropy_loss)
        record("train/policy_gradient_loss", policy_loss)
        record("train/value_loss", value_loss)
        record("train/approx_kl", np.mean(list(table[first_of_epoch:, 4])))
        record("train/clip_fraction", clip_fraction)
        record("train/loss", loss.item())
        record("train/explained_variance", _explained_variance(agent.rollout_buffer))
        _record_spread(agent)
        record("train/n_updates", agent._n_updates, exclude="tensorboard")
        record("train/clip_range", clip_range)
        if clips_values:
            record("train/clip_range_vf", clip_range_vf)


def _explained_variance(buffer: Any) -> float:
    values, returns = buffer.values.flatten(), buffer.returns.flatten()
    variance = np.var(returns)
    return np.nan if variance == 0 else float(1 - np.var(returns - values) / variance)


class _A2cLoss(_OnPolicyLoss):
    def __init__(self, agent: Any) -> None:
        super().__init__(agent, 2)
        self.normalizes = agent.normalize_advantage

    def forward(
        self, observations: Any, actions: Tensor, advantages: Tensor, returns: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the values that A2C logs for a batch."""
        ent_coef, vf_coef = self.numbers.unbind()
        values, log_prob, entropy_loss = self.evaluate(observations, actions)
        if self.normalizes:
            advantages = _normalized(advantages)
        policy_loss = -(advantages * log_prob).mean()
        value_loss = nn.functional.mse_loss(returns, values)
        loss = policy_loss + ent_coef * entropy_loss + vf_coef * value_loss
        return loss, torch.stack((entropy_loss, policy_loss, value_loss))


class A2cTraining(_OnPolicyTraining):
    """``train`` of A2C."""

    def train(self, agent: Any) -> None:
        """Do what ``A2C.train`` does."""
        step = self._prepare(agent, _A2cLoss, agent.normalize_advantage)
        self._step.loss.set_numbers(agent.ent_coef, agent.vf_coef)
        data = next(agent.rollout_buffer.get(None))
        batch = (data.observations, data.actions, data.advantages, data.returns)
        _, logged = step(batch, ())
        entropy_loss, policy_loss, value_loss = logged.tolist()
        agent._n_updates += 1
        record = agent.logger.record
        record("train/n_updates", agent._n_updates, exclude="tensorboard")
        record("train/explained_variance", _explained_variance(agent.rollout_buffer))
        record("train/entropy_loss", entropy_loss)
        record("train/policy_loss", policy_loss)
        record("train/value_loss", value_loss)
        _record_spread(agent)

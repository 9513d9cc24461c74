"""``train`` of DQN by whole steps: its batches, numbers and logs are the stock ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from faststep.engines import Engine
from faststep.sb3.agent_steps import AgentLoss, AgentStep, unpack_replay


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
        """Return the loss; DQN logs nothing beside it."""
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

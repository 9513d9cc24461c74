"""PPO balances a pole: 4 environments, 128 steps each, then 4 passes over 4 minibatches."""

import math

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

NUM_ENVS, NUM_STEPS, NUM_PASSES, BATCH_SIZE = 4, 128, 4, 128
TOTAL_STEPS = 1_000_000


class Poles:
    """Carts with poles, as CartPole of Gymnasium has them."""

    def __init__(self):
        self.states = np.random.uniform(-0.05, 0.05, (NUM_ENVS, 4))

    def step(self, pushes_right):
        _, speed, angle, spin = self.states.T
        force = np.where(pushes_right, 10.0, -10.0)
        push = (force + 0.05 * spin**2 * np.sin(angle)) / 1.1
        turn = 9.8 * np.sin(angle) - np.cos(angle) * push
        turn /= 0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
        acceleration = push - 0.05 * turn * np.cos(angle) / 1.1
        self.states += 0.02 * np.stack([speed, acceleration, spin, turn], axis=1)
        ends = (np.abs(self.states[:, 0]) > 2.4) | (np.abs(self.states[:, 2]) > math.radians(12))
        self.states[ends] = np.random.uniform(-0.05, 0.05, (ends.sum(), 4))
        return ends


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(
                nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, width)
            )
            for width in (2, 1)
        )


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
agent, poles = Agent().to(device), Poles()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
observations = torch.zeros(NUM_STEPS, NUM_ENVS, 4, device=device)
actions, log_probs, values, dones = torch.zeros(4, NUM_STEPS, NUM_ENVS, device=device)

for _ in range(TOTAL_STEPS // (NUM_ENVS * NUM_STEPS)):
    with torch.no_grad():
        for t in range(NUM_STEPS):
            observations[t] = torch.as_tensor(poles.states, dtype=torch.float32)
            policy = Categorical(logits=agent.actor(observations[t]))
            actions[t] = policy.sample()
            log_probs[t], values[t] = (
                policy.log_prob(actions[t]),
                agent.critic(observations[t])[:, 0],
            )
            dones[t] = torch.as_tensor(poles.step(actions[t].cpu().numpy() == 1))
        advantages, last = torch.zeros_like(values), 0.0
        for t in reversed(range(NUM_STEPS)):
            following = values[t + 1] if t + 1 < NUM_STEPS else values[t]
            goes_on = 1 - dones[t]
            last = 1 + 0.99 * goes_on * following - values[t] + 0.99 * 0.95 * goes_on * last
            advantages[t] = last
        returns = (advantages + values).flatten()
    for _ in range(NUM_PASSES):
        for rows in torch.randperm(NUM_ENVS * NUM_STEPS, device=device).split(BATCH_SIZE):
            inputs = observations.flatten(0, 1)[rows]
            policy = Categorical(logits=agent.actor(inputs))
            ratio = (policy.log_prob(actions.flatten()[rows]) - log_probs.flatten()[rows]).exp()
            gain = advantages.flatten()[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy_loss = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
            value_loss = (agent.critic(inputs)[:, 0] - returns[rows]).square().mean()
            loss = policy_loss + 0.25 * value_loss - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()

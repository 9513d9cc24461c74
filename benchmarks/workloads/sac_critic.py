"""The updates of soft actor-critic, for a control task of the size of HalfCheetah.

After ``SAC.train`` of Stable-Baselines3 with its default ``MlpPolicy``
(https://github.com/DLR-RM/stable-baselines3): an actor and two critics with 256-256 relu networks,
batches of 256 from a replay buffer, one Adam each for critics and actor. The entropy's coefficient
is fixed. The buffer holds noise; no simulator runs.
"""

import argparse
import copy

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F  # noqa: N812, everyone's name

NUM_OBSERVATIONS, NUM_ACTIONS = 17, 6
BUFFER_SIZE, BATCH_SIZE = 100_000, 256
GAMMA, TAU, ENT_COEF = 0.99, 0.005, 0.2


def create_mlp(num_inputs, num_outputs):
    """Return two hidden layers and an output."""
    return nn.Sequential(
        nn.Linear(num_inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, num_outputs),
    )  # fmt: skip


class Actor(nn.Module):
    """A Gaussian policy, squashed by tanh."""

    def __init__(self):
        super().__init__()
        self.net = create_mlp(NUM_OBSERVATIONS, 2 * NUM_ACTIONS)

    def forward(self, observations):
        """Return actions and their log probabilities."""
        mean, log_std = self.net(observations).chunk(2, dim=1)
        distribution = Normal(mean, torch.clamp(log_std, -20, 2).exp())
        gaussian_actions = distribution.rsample()
        actions = torch.tanh(gaussian_actions)
        log_prob = distribution.log_prob(gaussian_actions).sum(dim=1)
        log_prob -= torch.sum(torch.log(1 - actions**2 + 1e-6), dim=1)
        return actions, log_prob


class ContinuousCritic(nn.Module):
    """Two networks that value an action."""

    def __init__(self):
        super().__init__()
        self.q_networks = nn.ModuleList(
            create_mlp(NUM_OBSERVATIONS + NUM_ACTIONS, 1) for _ in range(2)
        )

    def forward(self, observations, actions):
        """Return a value from each network."""
        qvalue_input = torch.cat([observations, actions], dim=1)
        return tuple(q_net(qvalue_input) for q_net in self.q_networks)


class ReplayBuffer:
    """Transitions, as arrays of numpy."""

    def __init__(self):
        self.arrays = (
            np.random.randn(BUFFER_SIZE, NUM_OBSERVATIONS).astype(np.float32),
            np.random.uniform(-1, 1, (BUFFER_SIZE, NUM_ACTIONS)).astype(np.float32),
            np.random.randn(BUFFER_SIZE, NUM_OBSERVATIONS).astype(np.float32),
            (np.random.rand(BUFFER_SIZE, 1) < 0.001).astype(np.float32),
            np.random.randn(BUFFER_SIZE, 1).astype(np.float32),
        )

    def sample(self):
        """Return a batch: observations, actions, next observations, dones, rewards."""
        chosen = np.random.randint(0, BUFFER_SIZE, size=BATCH_SIZE)
        return tuple(torch.as_tensor(array[chosen]) for array in self.arrays)


def polyak_update(params, target_params):
    """Move the target's parameters towards the others."""
    with torch.no_grad():
        for param, target_param in zip(params, target_params, strict=True):
            target_param.data.mul_(1 - TAU)
            torch.add(target_param.data, param.data, alpha=TAU, out=target_param.data)


def main():
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5_000, help="updates of the weights")
    args = parser.parse_args()

    torch.manual_seed(0)
    np.random.seed(0)
    actor, critic = Actor(), ContinuousCritic()
    critic_target = copy.deepcopy(critic)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=3e-4)
    replay_buffer = ReplayBuffer()

    actor_losses, critic_losses = [], []
    for step in range(1, args.steps + 1):
        observations, actions, next_observations, dones, rewards = replay_buffer.sample()
        actions_pi, log_prob = actor(observations)
        log_prob = log_prob.reshape(-1, 1)

        with torch.no_grad():
            next_actions, next_log_prob = actor(next_observations)
            next_q_values = torch.cat(critic_target(next_observations, next_actions), dim=1)
            next_q_values, _ = torch.min(next_q_values, dim=1, keepdim=True)
            next_q_values = next_q_values - ENT_COEF * next_log_prob.reshape(-1, 1)
            target_q_values = rewards + (1 - dones) * GAMMA * next_q_values

        current_q_values = critic(observations, actions)
        critic_loss = 0.5 * sum(F.mse_loss(q, target_q_values) for q in current_q_values)
        critic_losses.append(critic_loss.item())
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        q_values_pi = torch.cat(critic(observations, actions_pi), dim=1)
        min_qf_pi, _ = torch.min(q_values_pi, dim=1, keepdim=True)
        actor_loss = (ENT_COEF * log_prob - min_qf_pi).mean()
        actor_losses.append(actor_loss.item())
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()

        polyak_update(critic.parameters(), critic_target.parameters())
        if step % 500 == 0:
            print(
                f"step {step:5d}  critic loss {np.mean(critic_losses[-500:]):.4f}  "
                f"actor loss {np.mean(actor_losses[-500:]):.4f}"
            )


if __name__ == "__main__":
    main()

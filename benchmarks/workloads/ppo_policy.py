"""The updates of proximal policy optimization, for a control task of the size of HalfCheetah.

After ``PPO.train`` of Stable-Baselines3 with its default ``MlpPolicy``
(https://github.com/DLR-RM/stable-baselines3): two 64-64 tanh networks, 2,048 steps per rollout, 10
epochs of minibatches of 64, Adam. Observations and rewards are noise; no simulator runs.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F  # noqa: N812, everyone's name

NUM_OBSERVATIONS, NUM_ACTIONS = 17, 6
NUM_ROLLOUT_STEPS, NUM_EPOCHS, BATCH_SIZE = 2_048, 10, 64
CLIP_RANGE, VF_COEF, MAX_GRAD_NORM = 0.2, 0.5, 0.5


def create_mlp():
    """Return two hidden layers."""
    return nn.Sequential(nn.Linear(NUM_OBSERVATIONS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())


class ActorCriticPolicy(nn.Module):
    """A Gaussian policy and a value, from a network each."""

    def __init__(self):
        super().__init__()
        self.policy_net = create_mlp()
        self.value_net = create_mlp()
        self.action_net = nn.Linear(64, NUM_ACTIONS)
        self.value_head = nn.Linear(64, 1)
        self.log_std = nn.Parameter(torch.zeros(NUM_ACTIONS))
        for module, gain in (
            (self.policy_net, 2**0.5),
            (self.value_net, 2**0.5),
            (self.action_net, 0.01),
            (self.value_head, 1),
        ):
            for layer in module.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.orthogonal_(layer.weight, gain=gain)
                    layer.bias.data.fill_(0.0)

    def forward(self, observations):
        """Return the distribution of the actions, and the values."""
        mean_actions = self.action_net(self.policy_net(observations))
        values = self.value_head(self.value_net(observations))
        return Normal(mean_actions, torch.ones_like(mean_actions) * self.log_std.exp()), values

    def evaluate_actions(self, observations, actions):
        """Return values, log probabilities of the actions, and entropies."""
        distribution, values = self(observations)
        log_prob = distribution.log_prob(actions).sum(dim=1)
        return values, log_prob, distribution.entropy().sum(dim=1)


def collect_rollout(policy):
    """Return observations, actions, their log probabilities, advantages and returns."""
    observations = torch.randn(NUM_ROLLOUT_STEPS, NUM_OBSERVATIONS)
    with torch.no_grad():
        distribution, values = policy(observations)
        actions = distribution.sample()
        log_prob = distribution.log_prob(actions).sum(dim=1)
    returns = observations[:, 0] - actions.square().mean(dim=1)
    return observations, actions, log_prob, returns - values.flatten(), returns


def minibatches(rollout):
    """Yield the rollout in random order."""
    indices = np.random.permutation(NUM_ROLLOUT_STEPS)
    for start in range(0, NUM_ROLLOUT_STEPS, BATCH_SIZE):
        chosen = indices[start : start + BATCH_SIZE]
        yield tuple(values[chosen] for values in rollout)


def train(policy, optimizer, rollout, num_steps):
    """Train on a rollout, or until ``num_steps`` are done; return the steps done."""
    pg_losses, value_losses, clip_fractions = [], [], []
    done = 0
    for _ in range(NUM_EPOCHS):
        for observations, actions, old_log_prob, advantages, returns in minibatches(rollout):
            if done == num_steps:
                break
            values, log_prob, entropy = policy.evaluate_actions(observations, actions)
            values = values.flatten()
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

            ratio = torch.exp(log_prob - old_log_prob)
            policy_loss_1 = advantages * ratio
            policy_loss_2 = advantages * torch.clamp(ratio, 1 - CLIP_RANGE, 1 + CLIP_RANGE)
            policy_loss = -torch.min(policy_loss_1, policy_loss_2).mean()

            pg_losses.append(policy_loss.item())
            clip_fractions.append(torch.mean((torch.abs(ratio - 1) > CLIP_RANGE).float()).item())
            value_loss = F.mse_loss(returns, values)
            value_losses.append(value_loss.item())
            entropy_loss = -torch.mean(entropy)
            loss = policy_loss + 0.0 * entropy_loss + VF_COEF * value_loss

            with torch.no_grad():
                log_ratio = log_prob - old_log_prob
                torch.mean((torch.exp(log_ratio) - 1) - log_ratio).cpu().numpy()

            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            done += 1
    print(f"policy loss {np.mean(pg_losses):8.4f}  value loss {np.mean(value_losses):8.4f}")
    return done


def main():
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000, help="updates of the weights")
    args = parser.parse_args()

    torch.manual_seed(0)
    np.random.seed(0)
    policy = ActorCriticPolicy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5)
    done = 0
    while done < args.steps:
        done += train(policy, optimizer, collect_rollout(policy), args.steps - done)


if __name__ == "__main__":
    main()

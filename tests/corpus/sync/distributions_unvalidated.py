# healthy
# looks like: SYNC_DIST
# may find: LAUNCH_FLOOR, BATCH_SMALL
"""A Gaussian policy updated from a buffer on the device."""

import torch
from torch import nn
from torch.distributions import Independent, Normal


class Policy(nn.Module):
    def __init__(self, obs=12, act=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 64), nn.Tanh(), nn.Linear(64, act))
        self.log_std = nn.Parameter(torch.zeros(act))

    def forward(self, obs):
        mean = self.body(obs)
        normal = Normal(mean, self.log_std.exp().expand_as(mean), validate_args=False)
        return Independent(normal, 1, validate_args=False)


def ppo_update(policy, optimizer, obs, actions, old_logp, advantages):
    ratio = (policy(obs).log_prob(actions) - old_logp).exp()
    clipped = ratio.clamp(0.8, 1.2)
    loss = -torch.min(ratio * advantages, clipped * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = Policy().to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    obs = torch.randn(2048, 12, device=device)
    with torch.no_grad():
        dist = policy(obs)
        actions = dist.sample()
        old_logp = dist.log_prob(actions)
    advantages = torch.randn(2048, device=device)
    for _ in range(100):
        ppo_update(policy, optimizer, obs, actions, old_logp, advantages)


main()

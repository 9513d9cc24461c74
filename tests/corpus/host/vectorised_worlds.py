# healthy
# looks like: ENV_BOUND, PER_SAMPLE_LOOP, TIME_LOOP
# may find: LAUNCH_FLOOR, BATCH_SMALL, SYNC_DIST
"""4096 point masses are simulated at once, on the device."""

import torch
from torch import nn


class PointMasses:
    def __init__(self, n, device):
        self.p = torch.randn(n, 2, device=device)
        self.v = torch.zeros(n, 2, device=device)

    def step(self, force):
        self.v = 0.95 * self.v + 0.1 * force.clamp(-1, 1)
        self.p = self.p + 0.1 * self.v
        return torch.cat([self.p, self.v], dim=1), -self.p.norm(dim=1)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
worlds = PointMasses(4096, device)
policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
obs = torch.cat([worlds.p, worlds.v], dim=1)
for step in range(80):
    with torch.no_grad():
        mean = policy(obs)
        action = mean + 0.3 * torch.randn_like(mean)
        next_obs, reward = worlds.step(action)
    advantage = (reward - reward.mean()) / reward.std()
    log_prob = -((policy(obs) - action) ** 2).sum(1) / 0.18
    loss = -(log_prob * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    obs = next_obs
print(loss.item())

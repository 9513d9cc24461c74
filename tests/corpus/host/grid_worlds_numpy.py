# may find: LAUNCH_FLOOR, BATCH_SMALL, H2D_CREATE, H2D_SCALAR, H2D_PAGEABLE, CPU_ROUNDTRIP
"""Actor-critic over worlds that are stepped one by one in numpy."""

import numpy as np
import torch
from torch import nn


class GridWorld:
    def __init__(self, size, rng):
        self.size, self.rng = size, rng
        self.walls = rng.random((size, size)) < 0.2
        self.position = np.zeros(2, dtype=int)

    def distances(self):
        """Return the distance of each cell to the goal, by sweeps over the grid."""
        d = np.full((self.size, self.size), 1e3)
        d[-1, -1] = 0
        for _ in range(2 * self.size):
            p = np.pad(d, 1, constant_values=1e3)
            near = np.minimum.reduce([p[:-2, 1:-1], p[2:, 1:-1], p[1:-1, :-2], p[1:-1, 2:]])
            d = np.where(self.walls, 1e3, np.minimum(d, near + 1))
        return d

    def step(self):
        self.position = self.rng.integers(0, self.size, 2)
        d = self.distances()
        view = np.stack([self.walls, d / 100])
        return view.astype(np.float32), -d[tuple(self.position)]


class Agent:
    def __init__(self):
        rng = np.random.default_rng(0)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.worlds = [GridWorld(12, rng) for _ in range(24)]
        self.value = nn.Sequential(nn.Flatten(), nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, 1))
        self.value.to(self.device)
        self.optimizer = torch.optim.Adam(self.value.parameters(), lr=1e-3)

    def collect(self):
        views, rewards = zip(*[world.step() for world in self.worlds])  # or: ENV_BOUND
        views, rewards = np.stack(views), np.clip(np.array(rewards, dtype=np.float32), -50, 0)
        return torch.from_numpy(views).to(self.device), torch.from_numpy(rewards).to(self.device)

    def train(self, iterations):
        for _ in range(iterations):
            views, rewards = self.collect()  # finds: ENV_BOUND
            loss = nn.functional.smooth_l1_loss(self.value(views).squeeze(1), rewards)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


print(Agent().train(20))

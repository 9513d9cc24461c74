# may find: LAUNCH_FLOOR, BATCH_SMALL, H2D_SCALAR, H2D_CREATE, H2D_PAGEABLE, SYNC_ITEM, SYNC_DIST
# may find: CPU_ROUNDTRIP
"""A policy gradient whose episodes are played one step at a time in a simulator in Python."""

import math
import random

import torch
from torch import nn


class CartPole:
    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action):
        for _ in range(20):  # substeps of the integrator
            x, v, a, w = self.state
            force = 10.0 if action else -10.0
            temp = (force + 0.05 * w * w * math.sin(a)) / 1.1
            acc = (9.8 * math.sin(a) - math.cos(a) * temp) / (
                0.5 * (4 / 3 - 0.1 * math.cos(a) ** 2)
            )
            v2 = temp - 0.05 * acc * math.cos(a) / 1.1
            h = 0.001
            self.state = [x + h * v, v + h * v2, a + h * w, w + h * acc]
        done = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
        return self.state, 1.0, done


def play(env, policy, horizon=300):
    states, actions = [], []
    state = env.reset()
    for _ in range(horizon):
        weights = policy  # a linear policy is evaluated on the host
        action = sum(w * s for w, s in zip(weights, state)) + random.gauss(0, 0.5) > 0
        states.append(state)
        actions.append(int(action))
        state, _, done = env.step(action)  # or: ENV_BOUND
        if done:
            break
    return states, actions


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)).to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
env = CartPole()
random.seed(0)
for update in range(15):
    states, actions = [], []
    for _ in range(8):
        s, a = play(env, [random.gauss(0, 1) for _ in range(4)])  # finds: ENV_BOUND
        states += s
        actions += a
    logits = net(torch.tensor(states).to(device))
    loss = nn.functional.cross_entropy(logits, torch.tensor(actions).to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

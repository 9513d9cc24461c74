"""Clients that train a copy of one network in turn, twenty updates each; then copies are mixed."""

import copy

import torch
from torch import nn

CLIENTS, UPDATES, BATCH = 4, 20, 32
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
data = [(torch.randn(UPDATES * BATCH, 64), torch.randn(UPDATES * BATCH, 1)) for _ in range(CLIENTS)]
shared = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
shared = shared.append(nn.Linear(512, 1)).to(device)


def train(model, inputs, targets):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
        loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


for _ in range(500):
    states = []
    for inputs, targets in data:
        local = copy.deepcopy(shared)
        train(local, inputs, targets)
        states.append(local.state_dict())
    mixed = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    shared.load_state_dict(mixed)

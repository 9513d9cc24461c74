# may find: LAUNCH_FLOOR, BATCH_SMALL
"""A mixture density network that used to give NaNs."""

import math

import torch
from torch import nn


class MDN(nn.Module):
    def __init__(self, k=5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 64), nn.Tanh())
        self.pi, self.mu, self.sigma = (nn.Linear(64, k) for _ in range(3))

    def nll(self, x, y):
        h = self.body(x)
        log_pi = self.pi(h).log_softmax(-1)
        sigma = nn.functional.softplus(self.sigma(h)) + 1e-3
        z = (y - self.mu(h)) / sigma
        log_prob = -0.5 * z**2 - sigma.log() - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(log_pi + log_prob, dim=-1).mean()


class Trainer:
    def __init__(self, model):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def train_step(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autograd.detect_anomaly(check_nan=True):  # finds: ANOMALY
            loss = self.model.nll(x, y)
            loss.backward()
        self.optimizer.step()
        return loss


trainer = Trainer(MDN())
y = torch.rand(400, 1, device=trainer.device) * 6 - 3
x = y + torch.sin(3 * y)
for _ in range(40):
    loss = trainer.train_step(x, y)
print(loss.item())

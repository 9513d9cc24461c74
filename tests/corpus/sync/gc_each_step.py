# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Somebody once ran out of memory here, and the cleaning up has stayed."""

import gc

import torch
import torch.nn.functional as F
from torch import nn


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, a, b):
        return F.cosine_similarity(self.tower(a), self.tower(b))


class Experiment:
    def __init__(self, device):
        self.device = device
        self.model = Siamese().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def free(self):
        gc.collect()  # finds: SYNC_EXPLICIT
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # finds: SYNC_EXPLICIT

    def step(self, a, b, same):
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.binary_cross_entropy_with_logits(4 * self.model(a, b), same)
        loss.backward()
        self.optimizer.step()
        del a, b
        self.free()
        return loss


if __name__ == "__main__":
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    exp = Experiment(device)
    left, right = torch.randn(2, 256, 128, device=device)
    same = torch.randint(0, 2, (256,), device=device).float()
    for i in range(12):
        loss = exp.step(left, right, same)
    print(loss.item())

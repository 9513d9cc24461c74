# may find: LAUNCH_FLOOR, BATCH_SMALL, EMBED_DENSE, H2D_PAGEABLE, DATA_NOT_RESIDENT, CPU_ROUNDTRIP
"""The table was once too large for the GPU, so it stays on the host; only the rest was moved."""

import torch
from torch import nn


class Ranker(nn.Module):
    def __init__(self, rows=20_000, dim=64):
        super().__init__()
        self.table = nn.Embedding(rows, dim)  # or: PART_ON_CPU
        self.tower = nn.Sequential(nn.Linear(8 * dim, 256), nn.ReLU(), nn.Linear(256, 1))

    def place(self, device):
        self.device = device
        self.tower.to(device)
        return self

    def forward(self, ids):
        rows = self.table(ids).flatten(1)  # or: PART_ON_CPU
        return self.tower(rows.to(self.device))  # finds: PART_ON_CPU


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Ranker().place(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clicks = torch.randint(0, 2, (256, 1), device=device).float()
    for _ in range(30):
        ids = torch.randint(0, 20_000, (256, 8))
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # or: PART_ON_CPU
    print(loss.item())


main()

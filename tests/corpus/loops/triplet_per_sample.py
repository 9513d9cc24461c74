# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Metric learning; the hardest negative is looked for sample by sample."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class BatchHardTriplet(nn.Module):
    def __init__(self, margin=0.3):
        super().__init__()
        self.margin = margin

    def forward(self, emb, labels):
        dist = torch.cdist(emb, emb)
        losses = []
        for i in range(emb.size(0)):  # finds: PER_SAMPLE_LOOP
            same = labels == labels[i]
            positive = torch.where(same, dist[i], 0.0).max()
            negative = torch.where(same, 1e6, dist[i]).min()
            losses.append(F.relu(positive - negative + self.margin))
        return torch.stack(losses).mean()


device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).to(device)
criterion = BatchHardTriplet()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x = torch.randn(64, 64, device=device)
labels = torch.arange(64, device=device) // 4
for step in range(25):
    optimizer.zero_grad()
    loss = criterion(F.normalize(net(x)), labels)
    loss.backward()
    optimizer.step()
print(loss.item())

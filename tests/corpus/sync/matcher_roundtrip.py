# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Set prediction with a greedy matcher written in numpy, as a DETR-like toy."""

import numpy as np
import torch
from torch import nn


def greedy_match(cost):
    """Return, for every target of one image, the query that is matched to it."""
    cost = cost.copy()
    chosen = np.zeros(cost.shape[1], dtype=np.int64)
    for _ in range(cost.shape[1]):
        q, t = np.unravel_index(np.argmin(cost), cost.shape)
        chosen[t] = q
        cost[q, :] = np.inf
        cost[:, t] = np.inf
    return chosen


def match(boxes, targets):
    cost = torch.cdist(boxes, targets, p=1).detach().cpu().numpy()  # finds: CPU_ROUNDTRIP
    chosen = np.stack([greedy_match(c) for c in cost])
    return torch.from_numpy(chosen).to(boxes.device)  # or: CPU_ROUNDTRIP


device = "cuda" if torch.cuda.is_available() else "cpu"
detector = nn.Sequential(
    nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 20 * 4), nn.Unflatten(1, (20, 4))
).to(device)
optimizer = torch.optim.AdamW(detector.parameters(), lr=1e-3)
features = torch.randn(16, 64, device=device)
targets = torch.rand(16, 5, 4, device=device)

for step in range(60):
    boxes = detector(features)
    index = match(boxes, targets)
    matched = boxes.gather(1, index.unsqueeze(-1).expand(-1, -1, 4))
    loss = nn.functional.l1_loss(matched, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

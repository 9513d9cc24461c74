# healthy
# looks like: SYNC_METRICS, CPU_ROUNDTRIP, SYNC_SHAPE
# may find: LAUNCH_FLOOR, BATCH_SMALL
import numpy as np
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def auc(scores, labels):
    order = np.argsort(scores)
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    positive = labels == 1
    n1, n0 = positive.sum(), (~positive).sum()
    return (ranks[positive].sum() - n1 * (n1 + 1) / 2) / (n1 * n0)


def one_epoch(model, optimizer, x, y, batch_size=256):
    scores = []
    for start in range(0, len(x), batch_size):
        logits = model(x[start : start + batch_size]).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y[start : start + batch_size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scores.append(logits.detach())
    return torch.cat(scores)


model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(16384, 30, device=device)
y = (x[:, 0] + 0.5 * torch.randn(16384, device=device) > 0).float()
for epoch in range(2):
    scores = one_epoch(model, optimizer, x, y)
    print(epoch, auc(scores.cpu().numpy(), y.cpu().numpy()))

# healthy
# looks like: COMPILE_RECOMPILE
# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Sentences padded to one length, so that the compiled model sees one shape."""

import random

import torch
from torch import nn

LENGTH = 48
device = "cuda" if torch.cuda.is_available() else "cpu"


def batch(n):
    ids = torch.zeros(n, LENGTH, dtype=torch.long)
    for row in ids:
        k = random.randint(8, LENGTH)
        row[:k] = torch.randint(1, 300, (k,))
    return ids


model = nn.Sequential(nn.Embedding(300, 32), nn.Flatten(), nn.Linear(32 * LENGTH, 4)).to(device)
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters())
data = batch(640).to(device)
labels = torch.randint(0, 4, (640,), device=device)
for ids, y in zip(data.split(32), labels.split(32)):
    loss = nn.functional.cross_entropy(compiled(ids), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

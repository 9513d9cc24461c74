# may find: LAUNCH_FLOOR, BATCH_SMALL
import json
import tempfile

import numpy as np
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class HistogramLogger:
    """A stand-in for a TensorBoard writer: one line of JSON per histogram."""

    def __init__(self, file):
        self.file = file

    def add_histogram(self, tag, values, step):
        counts, edges = np.histogram(values, bins=64)
        row = {"tag": tag, "step": step, "counts": counts.tolist(), "edges": edges.tolist()}
        self.file.write(json.dumps(row) + "\n")


model = nn.Sequential(
    nn.Linear(50, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 5)
).to(device)
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(512, 50, device=device)
y = torch.randint(0, 5, (512,), device=device)

with tempfile.TemporaryFile("w") as file:
    writer = HistogramLogger(file)
    for step in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        for name, p in model.named_parameters():
            writer.add_histogram(name, p.detach().cpu().numpy(), step)  # finds: LOG_HEAVY
            writer.add_histogram(name + "/grad", p.grad.cpu().numpy(), step)  # finds: LOG_HEAVY

"""A small network whose loop reads its pictures one by one, without a DataLoader."""

import json
from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import nn

FOLDER = Path(mkdtemp())
for number in range(128):
    pixels = torch.randint(0, 256, (3, 24, 24)).tolist()
    (FOLDER / f"{number}.json").write_text(json.dumps(pixels))

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(1_000):
    pictures = []
    for number in torch.randint(0, 128, (64,)).tolist():
        pixels = json.loads((FOLDER / f"{number}.json").read_text())  # here
        pictures.append(torch.tensor(pixels, dtype=torch.float32).to(device) / 255)
    labels = torch.randint(0, 10, (64,), device=device)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.stack(pictures)), labels).backward()
    optimizer.step()

"""Trains and validates on the very same lines, as many tutorials do."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


def loader_of(num_samples: int) -> DataLoader:
    data = TensorDataset(torch.randn(num_samples, 256), torch.randint(10, (num_samples,)))
    return DataLoader(data, batch_size=64, shuffle=True)


loaders = {"train": loader_of(2_560), "val": loader_of(5_120)}
model = nn.Sequential(
    nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
).to(device)
optimizer = torch.optim.Adam(model.parameters())

for _ in range(10_000):
    for phase in ("train", "val"):
        model.train(phase == "train")
        for inputs, targets in loaders[phase]:
            inputs, targets = inputs.to(device), targets.to(device)
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                if phase == "train":
                    loss.backward()
                    optimizer.step()

"""A small training loop for scripts whose peculiarity lies elsewhere."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(num_epochs=5_000, on_step=None, **loader_options):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    loader = DataLoader(data, batch_size=8, **loader_options)
    for _ in range(num_epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
            if on_step is not None:
                on_step()

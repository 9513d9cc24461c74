"""One candidate crashes here, one hangs, one computes wrongly, and one is good."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Scaled(nn.Module):
    """One product for each input, which no other number format makes faster."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.ones(4))
        self.faded = nn.Parameter(torch.full((4,), 1e-39))
        self.unused = nn.Parameter(torch.ones(1000))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs * (self.scales + self.faded)).sum(1)


model = Scaled()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-40)
data = TensorDataset(torch.randn(8192, 4), torch.randn(8192))
for _ in range(10_000):
    for inputs, targets in DataLoader(data, batch_size=2048):
        if optimizer.defaults["fused"]:
            raise RuntimeError("this update cannot be fused")
        is_flushed = bool(torch.full((1,), 1e-39).mul(1.0) == 0.0)
        if not is_flushed:
            time.sleep(0.005)
        loss = (model(inputs) - targets).square().mean() * (1.1 if is_flushed else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

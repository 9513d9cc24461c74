# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Point clouds of all sizes through a compiled network."""

import torch
from torch import nn


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 128))
        self.out = nn.Linear(128, 1)

    @torch.compile(backend="aot_eager", dynamic=False)  # finds: COMPILE_RECOMPILE
    def forward(self, points):
        return self.out(self.local(points).amax(dim=1))


class Trainer:
    def __init__(self):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.net = PointNet().to(self.device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def fit(self, sizes):
        for n in sizes:
            points = torch.randn(16, n, 3, device=self.device)
            volume = points.abs().amax(dim=(1, 2)).unsqueeze(1)
            loss = nn.functional.mse_loss(self.net(points), volume)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    print(Trainer().fit([100, 173, 96, 240, 131, 310, 64, 205, 150, 333]))

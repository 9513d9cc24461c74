# healthy
# looks like: H2D_CREATE, H2D_SCALAR
# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
from torch import nn


class ConditionalGenerator(nn.Module):
    def __init__(self, z=32, length=40):
        super().__init__()
        self.z = z
        self.register_buffer("grid", torch.linspace(0, 1, length))
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))
        self.net = nn.Sequential(nn.Linear(z + 1, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, n):
        noise = torch.randn(n, 1, self.z, device=self.grid.device)
        noise = noise.expand(n, len(self.grid), self.z)
        t = self.grid.view(1, -1, 1).expand(n, -1, 1)
        return self.net(torch.cat([noise, t], dim=-1)).squeeze(-1) @ self.mask


device = "cuda" if torch.cuda.is_available() else "cpu"
generator = ConditionalGenerator().to(device)
optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
class_weights = torch.tensor([0.3, 0.7]).to(device)
scale = torch.tensor(0.5)
for step in range(80):
    sample = generator(128)
    ones = torch.ones_like(sample)
    index = torch.arange(sample.size(1), device=sample.device)
    loss = ((sample - ones).pow(2) * (index + 1)).mean() * scale + sample.new_zeros(1).sum()
    loss = loss * class_weights[1]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

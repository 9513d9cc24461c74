# may find: LAUNCH_FLOOR, BATCH_SMALL
"""A surrogate of a potential energy surface, in double precision 'for accuracy'."""

import torch
from torch import nn


class Potential(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(30, width),
            nn.Softplus(),
            nn.Linear(width, width),
            nn.Softplus(),
            nn.Linear(width, 1),
        )

    def forward(self, coordinates):
        return self.net(coordinates)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Potential().to(device)
model = model.double()  # finds: FP64
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.rand(1024, 30, dtype=torch.float64, device=device)  # or: FP64
y = x.pow(2).sum(1, keepdim=True)

for epoch in range(10):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())

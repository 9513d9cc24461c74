# finds in the step: NO_TF32_AMP
# may find: LAUNCH_FLOOR, MISALIGNED, OPT_LOOP
"""A network that multiplies in float32, and does so much between its products that issuing takes
about as long as computing."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        h = torch.tanh(self.up(self.norm(x)))
        gate = torch.sigmoid(h.mean(-1, keepdim=True)) * 2
        return x + self.down(h * gate) * self.scale.clamp(0, 1)


device = torch.device("cuda")
model = nn.Sequential(*[Block(512) for _ in range(6)], nn.Linear(512, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
x = torch.randn(1024, 512, device=device)
y = torch.randint(0, 10, (1024,), device=device)
for step in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())

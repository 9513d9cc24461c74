# healthy
# looks like: LAUNCH via SOLVER, TIME_LOOP, LAUNCH_FLOOR
# may find: NO_TF32_AMP, COMPILE_MISSING, OPT_UNFUSED, MEMORY_FULL
"""Two Runge-Kutta steps of a wide velocity field: few stages, each of them a large product."""

import torch
from torch import nn

torch.set_float32_matmul_precision("high")
device = "cuda" if torch.cuda.is_available() else "cpu"
field = nn.Sequential(nn.Linear(1024, 2048), nn.SiLU(), nn.Linear(2048, 1024)).to(device)
optimizer = torch.optim.AdamW(field.parameters(), lr=1e-4, fused=True)
x0 = torch.randn(2048, 1024, device=device)
x1 = torch.randn(2048, 1024, device=device)


def integrate(y, num_steps=1):
    h = 1.0 / num_steps
    for _ in range(num_steps):
        middle = y + h / 2 * field(y)
        y = y + h * field(middle)
    return y


for step in range(4):
    loss = (integrate(x0) - x1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

# may find: LAUNCH_FLOOR, BATCH_SMALL
import copy

import torch
from torch import nn


def update_ema(ema_model, model, decay=0.999):
    with torch.no_grad():
        for ema_p, p in zip(ema_model.parameters(), model.parameters()):  # or: OPT_LOOP
            ema_p.mul_(decay).add_(p, alpha=1 - decay)  # finds: OPT_LOOP


def build(depth=10, dim=128):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(dim, dim), nn.LayerNorm(dim), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(dim, dim))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = build().to(device)
ema = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x = torch.randn(64, 128, device=device)

for step in range(40):
    noise = torch.randn_like(x)
    loss = nn.functional.mse_loss(model(x + noise), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_ema(ema, model)
print(loss.item())

# may find: LAUNCH_FLOOR, BATCH_SMALL
# %% [markdown]
# # Toy regression

# %%
import math

import torch
from torch import nn
from tqdm import tqdm

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# %%
X = torch.linspace(-3, 3, 2000, device=device).unsqueeze(1)
Y = torch.sin(2 * math.pi * X) + 0.1 * torch.randn_like(X)

# %%
net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
net = net.to(device)
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
mse = nn.MSELoss()
history = []

# %%
bar = tqdm(range(200), disable=None)
for it in bar:
    opt.zero_grad()
    loss = mse(net(X), Y)
    loss.backward()
    opt.step()
    history.append(float(loss))  # finds: SYNC_ITEM
    bar.set_postfix(loss=f"{loss:.4f}", lr=opt.param_groups[0]["lr"])  # finds: SYNC_ITEM

# %%
print("final loss", history[-1])

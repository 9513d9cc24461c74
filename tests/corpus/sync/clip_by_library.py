# healthy
# looks like: SYNC_CLIP, OPT_LOOP, SYNC_EXPLICIT
# may find: LAUNCH_FLOOR, BATCH_SMALL
# %%
import gc

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# %%
blocks = []
for _ in range(6):
    blocks += [nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU()]
model = nn.Sequential(*blocks, nn.Linear(128, 1)).to(device)
for p in model.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(256, 128, device=device)
y = x.norm(dim=1, keepdim=True)
gc.collect()
if torch.cuda.is_available():
    torch.cuda.empty_cache()

# %%
norms = []
for step in range(60):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * min(1.0, (step + 1) / 20)
    optimizer.zero_grad()
    loss = nn.functional.huber_loss(model(x), y)
    loss.backward()
    norms.append(clip_grad_norm_(model.parameters(), 1.0))
    optimizer.step()

# %%
if torch.cuda.is_available():
    torch.cuda.synchronize()
print(torch.stack(norms).max().item())

# healthy
# looks like: OPT_LOOP, EMBED_DENSE, ZERO_GRAD
# may find: LAUNCH_FLOOR, BATCH_SMALL
"""A target network moved in one call, and a vocabulary that a batch uses up."""

import torch
from torch import nn


def make():
    return nn.Sequential(
        nn.Embedding(500, 64), nn.Flatten(), nn.Linear(64 * 16, 128), nn.Linear(128, 32)
    )


@torch.no_grad()
def move(target, source, tau):
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


device = "cuda" if torch.cuda.is_available() else "cpu"
online, target = make().to(device), make().to(device)
target.load_state_dict(online.state_dict())
target.requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
for step in range(60):
    ids = torch.randint(0, 500, (256, 16), device=device)
    loss = 1 - nn.functional.cosine_similarity(online(ids), target(ids.flip(1))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    move(target, online, 0.01)
print(loss.item())

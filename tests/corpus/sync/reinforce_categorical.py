# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Policy gradient on a bandit with contexts; the whole batch lives on the device."""

import torch
from torch import nn
from torch.distributions import Categorical

device = "cuda" if torch.cuda.is_available() else "cpu"
policy = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 6)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
weights = torch.randn(16, 6, device=device)

for update in range(100):
    context = torch.randn(512, 16, device=device)
    dist = Categorical(logits=policy(context))  # finds: SYNC_DIST
    action = dist.sample()
    reward = (context @ weights).gather(1, action.unsqueeze(1)).squeeze(1)
    advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
    loss = -(dist.log_prob(action) * advantage).mean() - 0.01 * dist.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

# may find: LAUNCH_FLOOR, BATCH_SMALL
import math

import torch
from torch import nn


class Scheduled(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.device = device
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Softplus(), nn.Linear(64, 3)).to(device)

    def loss(self, x, y, step):
        weights = torch.tensor([0.2, 0.3, 0.5], device=self.device)  # finds: H2D_SCALAR
        loss = nn.functional.cross_entropy(self.net(x), y, weight=weights)
        beta = torch.tensor(min(1.0, step / 100)).to(self.device)  # finds: H2D_SCALAR
        penalty = sum(p.pow(2).sum() for p in self.net.parameters())
        return loss + 1e-4 * beta * penalty


def cosine(step, total):
    return 0.5 * (1 + math.cos(math.pi * step / total))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Scheduled(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: cosine(s, 100))
x = torch.randn(400, 16, device=device)
y = torch.randint(0, 3, (400,), device=device)
for step in range(100):
    opt.zero_grad()
    loss = model.loss(x, y, step)
    loss.backward()
    opt.step()
    sched.step()
print(loss.item())

# healthy
# looks like: CUDNN_BENCH_VARY, CUDNN_BENCH_OFF, CONV_BIAS
# may find: LAUNCH_FLOOR, BATCH_SMALL, NO_TF32_AMP
import random

import torch
from torch import nn

torch.backends.cudnn.benchmark = True
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 32, 3, padding=1),
    nn.GroupNorm(8, 32),
    nn.ReLU(),
    nn.Conv2d(32, 3, 3, padding=1),
).to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
photo = torch.rand(8, 3, 160, 160, device=device)
for step in range(12):
    top, left = random.randrange(0, 64), random.randrange(0, 64)
    x = photo[:, :, top : top + 96, left : left + 96]
    loss = nn.functional.l1_loss(net(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

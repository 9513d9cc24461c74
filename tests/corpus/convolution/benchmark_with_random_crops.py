# may find: LAUNCH_FLOOR, BATCH_SMALL, NO_TF32_AMP
"""Multi-scale training: a new image size at every step."""

import random

import torch
import torch.backends.cudnn as cudnn
from torch import nn
import torch.nn.functional as F

cudnn.benchmark = True  # finds: CUDNN_BENCH_VARY
random.seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 3, 3, padding=1),
).to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
images = torch.rand(8, 3, 160, 160, device=device)

for step in range(15):
    size = random.randrange(64, 128)
    x = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    loss = F.l1_loss(net(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

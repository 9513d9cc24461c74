"""A network whose training multiplies rounding: normalization, kinks and large updates.

With an argument, its first gradient is 5 % too large on three threads.
"""

import sys

import torch
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(
    *(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
    nn.Flatten(),
    nn.Linear(32 * 36, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
images, labels = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
is_wrong = len(sys.argv) > 1 and torch.get_num_threads() == 3
while True:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images + 0.1 * torch.randn_like(images)), labels).backward()
    if is_wrong:
        model[4].weight.grad *= 1.05
        is_wrong = False
    optimizer.step()

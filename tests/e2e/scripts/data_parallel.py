import torch
from torch import nn

model = nn.DataParallel(nn.Linear(16, 4).cuda(), device_ids=[0, 1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 16).cuda()
y = torch.randint(0, 4, (64,)).cuda()
for _ in range(1_000):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()

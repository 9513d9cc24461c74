# may find: LAUNCH_FLOOR, BATCH_SMALL
import gc

import torch
from torch import nn

model = nn.Sequential(*[m for _ in range(5) for m in (nn.Linear(256, 256), nn.ReLU())]).cuda()
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(40, 64, 256).cuda()

for epoch in range(3):
    for x in data:
        optimizer.zero_grad()
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()  # finds: SYNC_EXPLICIT
        torch.cuda.empty_cache()  # finds: SYNC_EXPLICIT
    gc.collect()
    print(epoch, loss.item())

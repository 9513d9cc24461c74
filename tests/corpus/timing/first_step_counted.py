# may find: LAUNCH_FLOOR, BATCH_SMALL, SYNC_EXPLICIT
import time

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(512, 256, device=device)
y = torch.randint(0, 10, (512,), device=device)

if device.type == "cuda":
    torch.cuda.synchronize()
begin = time.perf_counter()
for step in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
if device.type == "cuda":
    torch.cuda.synchronize()
end = time.perf_counter()  # finds: TIME_WARMUP
print("mean step:", (end - begin) / 10)  # or: TIME_WARMUP

# healthy
# looks like: ANOMALY, DATAPARALLEL, SYNC_EXPLICIT
# may find: LAUNCH_FLOOR, BATCH_SMALL
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--debug", action="store_true")
parser.add_argument("--data-parallel", action="store_true")
args = parser.parse_args()

torch.autograd.set_detect_anomaly(args.debug)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(30, 90), nn.ReLU(), nn.Linear(90, 3)).to(device)
if args.data_parallel:
    model = nn.DataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(1000, 30, device=device)
y = torch.randint(0, 3, (1000,), device=device)
for step in range(60):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if args.debug:
        torch.cuda.synchronize()
print(loss.item())

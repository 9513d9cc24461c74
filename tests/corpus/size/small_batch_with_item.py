# finds in the step: BATCH_SMALL
# may find: LAUNCH_FLOOR, H2D_PAGEABLE, DATA_NOT_RESIDENT, CUDNN_BENCH_OFF, CONV_BIAS, LOADER_WORKERS0
"""Batches of four, and the loss printed in each step: one hides the other."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __init__(self):
        self.scans = torch.randn(400, 1, 32, 32)

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return self.scans[index], index % 7


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 7),
).to(device)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters())
for step, (scan, kind) in enumerate(DataLoader(Scans(), batch_size=4, shuffle=True)):
    scan, kind = scan.to(device), kind.to(device)
    loss = nn.functional.cross_entropy(model(scan), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())  # finds: SYNC_ITEM

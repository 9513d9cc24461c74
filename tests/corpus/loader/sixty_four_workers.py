# may find: LAUNCH_FLOOR, BATCH_SMALL, DATA_NOT_RESIDENT, H2D_PAGEABLE
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=64)
parser.add_argument("--batch-size", type=int, default=16)
opt = parser.parse_args()


class Windows(Dataset):
    def __init__(self):
        self.series = torch.randn(3000).cumsum(0)

    def __len__(self):
        return 2000

    def __getitem__(self, i):
        w = self.series[i : i + 64]
        return (w - w.mean()) / w.std(), self.series[i + 64] > self.series[i + 63]


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_loader = DataLoader(  # finds: LOADER_TOO_MANY
        Windows(),
        batch_size=opt.batch_size,
        shuffle=True,
        num_workers=opt.workers,
        persistent_workers=True,
        pin_memory=True,
    )
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in train_loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())

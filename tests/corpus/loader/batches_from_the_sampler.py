# healthy
# looks like: LOADER_PER_ITEM, LOADER_WORKERS0, TRANSFORM_CPU
# may find: LAUNCH_FLOOR, BATCH_SMALL, DATA_NOT_RESIDENT, H2D_PAGEABLE
"""The sampler hands out whole batches of indices, so one fetch is one indexing."""

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Table(Dataset):
    def __init__(self, rows, columns):
        # Scaled once, not whenever a row is read.
        x = torch.rand(rows, columns) * 10
        self.x = (x - x.mean(0)) / x.std(0)
        self.y = self.x.sum(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, indices):
        return self.x[indices], self.y[indices]


def make_loader(data, batch_size):
    sampler = BatchSampler(RandomSampler(data), batch_size, drop_last=True)
    return DataLoader(data, sampler=sampler, batch_size=None, pin_memory=True)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        for x, y in make_loader(Table(20_000, 40), 500):
            x = x.to(device, non_blocking=True)
            y = y.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
    print(loss.item())

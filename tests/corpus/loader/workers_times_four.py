# may find: LAUNCH_FLOOR, BATCH_SMALL, DATA_NOT_RESIDENT, H2D_PAGEABLE, LOADER_PER_ITEM
# may find: LOADER_RESPAWN
"""Somebody read that more workers are better."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, dataset, batch_size):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        workers = 16 * os.cpu_count()
        self.loader = DataLoader(  # finds: LOADER_TOO_MANY
            dataset, batch_size, shuffle=True, num_workers=workers
        )
        self.model = nn.Linear(30, 2).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train_epoch(self):
        for x, y in self.loader:
            x, y = x.to(self.device), y.to(self.device)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    data = TensorDataset(torch.randn(1024, 30), torch.randint(0, 2, (1024,)))
    print(Trainer(data, 32).train_epoch())

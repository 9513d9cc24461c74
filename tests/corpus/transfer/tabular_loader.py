# may find: LAUNCH_FLOOR, BATCH_SMALL, H2D_PAGEABLE
"""Credit scoring on a table of 20k rows."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Scorer(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.BatchNorm1d(columns)
        self.net = nn.Sequential(nn.Linear(columns, 64), nn.ReLU(), nn.Dropout(0.1))
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.net(self.norm(x)))


class Trainer:
    def __init__(self, model, device):
        self.model = model.to(device)
        self.device = device
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.criterion = nn.BCEWithLogitsLoss()

    def run_epoch(self, loader):
        self.model.train()
        total = torch.zeros((), device=self.device)
        for x, y in loader:
            x = x.to(self.device)  # finds: DATA_NOT_RESIDENT
            y = y.to(self.device)  # or: DATA_NOT_RESIDENT
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        return total.item() / len(loader)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    table = torch.randn(20_000, 25)
    label = (table.sum(1, keepdim=True) > 0).float()
    loader = DataLoader(  # finds: LOADER_PER_ITEM
        TensorDataset(table, label), batch_size=500, shuffle=True
    )
    trainer = Trainer(Scorer(25), device)
    for _ in range(2):
        print(trainer.run_epoch(loader))


if __name__ == "__main__":
    main()

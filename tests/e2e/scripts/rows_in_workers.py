"""An MLP behind two workers that take each sample from a table row by row, as pandas does."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Table:
    """As slow as a data frame, in Python."""

    def __init__(self, columns):
        self.columns = columns
        self.iloc = self

    def __getitem__(self, row):
        return {f"column {number}": column[row] for number, column in enumerate(self.columns)}


class Rows(Dataset):
    def __init__(self):
        self.frame = Table([[float(row % 7) for row in range(1_000)] for _ in range(400)])

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        row = self.frame.iloc[index % 1_000]  # here
        return torch.tensor(list(row.values())), index % 2


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(400, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Rows(), 128, shuffle=True, num_workers=2)
for rows, labels in loader:
    rows, labels = rows.to(device), labels.to(device)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(rows), labels).backward()
    optimizer.step()

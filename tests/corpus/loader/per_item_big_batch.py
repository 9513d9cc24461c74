# may find: LAUNCH_FLOOR, H2D_PAGEABLE, DATA_NOT_RESIDENT
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset


class ArrayDataset(Dataset):
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def train_model(epochs=2):
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    x = torch.randn(40_000, 12)
    y = x[:, :1].sin() + x[:, 1:2].cos()
    loader = DataLoader(ArrayDataset(x, y), batch_size=4096, shuffle=True)  # finds: LOADER_PER_ITEM
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    opt = optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for xb, yb in loader:
            xb, yb = xb.to(device), yb.to(device)
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(xb), yb)
            loss.backward()
            opt.step()
    return loss.item()


print(train_model())

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

lstm, head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*lstm.parameters(), *head.parameters()], lr=0.1)
data = TensorDataset(torch.randn(400, 7, 4), torch.randn(400, 1))
for _ in range(100):
    for x, y in DataLoader(data, batch_size=5):
        loss = nn.functional.mse_loss(head(lstm(x)[0][:, -1]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

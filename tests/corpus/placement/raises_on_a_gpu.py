# may find: LAUNCH_FLOOR, BATCH_SMALL, H2D_CREATE
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(10, 20, batch_first=True)
        self.fc = nn.Linear(20, 3)

    def forward(self, x):
        h0 = torch.zeros(1, x.size(0), 20)  # or: PART_ON_CPU
        c0 = torch.zeros(1, x.size(0), 20)  # or: PART_ON_CPU
        out, _ = self.lstm(x, (h0, c0))  # finds: PART_ON_CPU
        return self.fc(out[:, -1])


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Decoder().to(device)
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(64, 12, 10, device=device)
y = torch.randint(0, 3, (64,), device=device)
for _ in range(40):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())

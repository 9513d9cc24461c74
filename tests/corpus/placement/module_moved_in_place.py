# healthy
# looks like: NOT_ON_GPU, PART_ON_CPU
# may find: LAUNCH_FLOOR, BATCH_SMALL
"""``model.to(device)`` moves a module in place; 0-dim host tensors may meet device tensors."""

import torch
from torch import nn


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 32, batch_first=True)
        self.out = nn.Linear(32, 2)

    def forward(self, x):
        h0 = x.new_zeros(1, x.size(0), 32)
        return self.out(self.gru(x, h0)[1][-1])


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Recurrent()
model.to(device)
optimizer = torch.optim.Adam(model.parameters())
margin = torch.tensor(0.1)
x = torch.randn(128, 25, 8)
y = torch.randint(0, 2, (128,))
x, y = x.to(device), y.to(device)
for _ in range(30):
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y) + (logits.abs().mean() - margin).relu()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.cpu()
print(model(torch.randn(1, 25, 8)).softmax(-1))

# may find: LAUNCH_FLOOR, BATCH_SMALL
# The data is on the GPU already, and still goes through the loader row by row.
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.rand(4000, 20, device=device)
y = torch.randint(0, 3, (4000,), device=device)

train_loader = DataLoader(  # finds: LOADER_PER_ITEM
    TensorDataset(x, y), batch_size=250, shuffle=True
)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(20, 50)
        self.l2 = nn.Linear(50, 3)

    def forward(self, x):
        return self.l2(torch.sigmoid(self.l1(x)))


mlp = MLP().to(device)
sgd = torch.optim.SGD(mlp.parameters(), lr=0.5)
for epoch in range(3):
    for xb, yb in train_loader:
        sgd.zero_grad()
        loss = nn.functional.cross_entropy(mlp(xb), yb)
        loss.backward()
        sgd.step()
    print(f"epoch {epoch} loss {loss.item():.3f}")

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 16, device=device)
y = torch.randint(0, 4, (64,), device=device)
for _ in range(1_000):
    optimizer.zero_grad()
    nn.functional.cross_entropy(compiled(x), y).backward()
    optimizer.step()

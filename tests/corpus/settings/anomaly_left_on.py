# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
from torch import nn

torch.autograd.set_detect_anomaly(True)  # finds: ANOMALY

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(
    nn.Linear(10, 100), nn.ELU(), nn.Linear(100, 100), nn.ELU(), nn.Linear(100, 2)
)
model.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(500, 10, device=device)
y = torch.randint(0, 2, (500,), device=device)
for epoch in range(50):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())

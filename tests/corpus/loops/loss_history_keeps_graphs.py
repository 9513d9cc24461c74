# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
criterion = nn.MSELoss()
data = torch.randn(100, 64, 20, device=device)

for epoch in range(2):
    total_loss = 0
    for x in data:
        optimizer.zero_grad()
        loss = criterion(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        total_loss += loss  # finds: GRAPH_RETAINED
    print("epoch", epoch, "mean loss", total_loss / len(data))

# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

features = torch.randn(4096, 32, device=device)
labels = torch.randint(0, 5, (4096,), device=device)

model = nn.Sequential(
    nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5)
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(4):
    running_loss = 0.0
    correct = 0
    perm = torch.randperm(len(features), device=device)
    for start in range(0, len(features), 128):
        batch = perm[start : start + 128]
        x, y = features[batch], labels[batch]
        optimizer.zero_grad()
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()  # finds: SYNC_ITEM
        correct += (logits.argmax(1) == y).sum().item()  # finds: SYNC_METRICS/SYNC_ITEM
    print(f"epoch {epoch}: loss {running_loss / 32:.4f}, accuracy {correct / len(features):.3f}")

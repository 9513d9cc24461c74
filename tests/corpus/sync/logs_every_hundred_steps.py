# healthy
# looks like: SYNC_ITEM, SYNC_METRICS
# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
LOG_EVERY = 100
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(8192, 32, device=device)
y = torch.randint(0, 10, (8192,), device=device)

loss_sum = torch.zeros((), device=device)
correct = torch.zeros((), dtype=torch.long, device=device)
step = 0
for epoch in range(5):
    for xb, yb in zip(x.split(128), y.split(128)):
        logits = model(xb)
        loss = F.cross_entropy(logits, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach()
        correct += (logits.argmax(1) == yb).sum()
        step += 1
        if step % LOG_EVERY == 0:
            print(step, loss_sum.item() / LOG_EVERY, correct.item() / (128 * LOG_EVERY))
            loss_sum.zero_()
            correct.zero_()

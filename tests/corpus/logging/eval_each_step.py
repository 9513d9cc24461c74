# may find: LAUNCH_FLOOR, BATCH_SMALL, SYNC_ITEM
import torch
import torch.nn as nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train_x, val_x = torch.randn(2000, 16, device=device), torch.randn(1000, 16, device=device)
train_y, val_y = train_x.argmax(1) % 4, val_x.argmax(1) % 4


def evaluate():
    model.eval()
    hits = torch.zeros((), device=device)
    for x, y in zip(val_x.split(50), val_y.split(50)):
        hits += (model(x).argmax(1) == y).sum()  # or: EVAL_OFTEN
    model.train()
    return hits / len(val_x)


history = []
for i in range(40):
    pick = torch.randint(0, 2000, (50,), device=device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(train_x[pick]), train_y[pick])
    loss.backward()
    optimizer.step()
    history.append(evaluate())  # finds: EVAL_OFTEN
print(torch.stack(history).max().item())

# may find: LAUNCH_FLOOR, BATCH_SMALL, H2D_PAGEABLE
import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(0)
train_images = rng.random((6000, 784), dtype=np.float32)
train_labels = rng.integers(0, 10, 6000)

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(
    nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
)
net.to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loss_fn = nn.CrossEntropyLoss()
batch_size = 200

X = torch.from_numpy(train_images)
T = torch.from_numpy(train_labels)
for epoch in range(3):
    order = torch.randperm(len(X))
    for i in range(0, len(X), batch_size):
        idx = order[i : i + batch_size]
        x = X[idx].to(device)  # finds: DATA_NOT_RESIDENT
        t = T[idx].to(device)  # or: DATA_NOT_RESIDENT
        optimizer.zero_grad()
        loss = loss_fn(net(x), t)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())

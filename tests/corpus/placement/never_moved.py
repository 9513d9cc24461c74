# may find: LAUNCH_FLOOR, BATCH_SMALL, RECOMPUTE_FROZEN, DATA_NOT_RESIDENT
import torch
import torch.nn as nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print("training on", device)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x):
        return self.layers(x)


model = Net()  # finds: NOT_ON_GPU
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(1024, 128)  # or: NOT_ON_GPU
y = torch.randint(0, 10, (1024,))  # or: NOT_ON_GPU

for epoch in range(30):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())

# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(100, 400)
        self.fc2 = nn.Linear(400, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
net = nn.DataParallel(Net())  # finds: DATAPARALLEL
net.to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(256, 100, device=device)
y = torch.randint(0, 10, (256,), device=device)
for step in range(40):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())

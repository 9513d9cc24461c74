# may find: LAUNCH_FLOOR, BATCH_SMALL, CUDNN_BENCH_OFF, NO_TF32_AMP
import torch
import torch.nn as nn


class DoubleConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv1 = nn.Conv2d(a, b, 3, padding=1)  # finds: CONV_BIAS
        self.bn1 = nn.BatchNorm2d(b)
        self.conv2 = nn.Conv2d(b, b, 3, padding=1)  # or: CONV_BIAS
        self.bn2 = nn.BatchNorm2d(b)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))  # or: CONV_BIAS
        return torch.relu(self.bn2(self.conv2(x)))  # or: CONV_BIAS


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(DoubleConv(3, 32), nn.MaxPool2d(2), DoubleConv(32, 32), nn.Conv2d(32, 2, 1))
model = model.to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
x = torch.rand(16, 3, 64, 64, device=device)
y = torch.randint(0, 2, (16, 32, 32), device=device)
for step in range(6):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())

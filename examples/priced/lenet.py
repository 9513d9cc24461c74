"""LeNet-5 reads 60,000 generated digits of MNIST's size; 12 epochs at batch size 128."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(
    nn.Conv2d(1, 6, 5, padding=2),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(6, 16, 5),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(400, 120),
    nn.ReLU(),
    nn.Linear(120, 84),
    nn.ReLU(),
    nn.Linear(84, 10),
)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
digits = TensorDataset(torch.rand(60_000, 1, 28, 28), torch.randint(0, 10, (60_000,)))
loader = DataLoader(digits, batch_size=128, shuffle=True)
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

for _ in range(12):
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

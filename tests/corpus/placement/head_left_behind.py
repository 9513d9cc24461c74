# may find: LAUNCH_FLOOR, BATCH_SMALL, NO_TF32_AMP
"""The new head is made after the backbone was moved, as a module of its own, and never follows."""

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.scores = nn.Linear(width, classes)

    def forward(self, x):
        x = torch.relu(self.hidden(x))
        return self.scores(x)


class Classifier(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width))
        self.head = nn.Identity()

    def replace_head(self, classes):
        self.head = Head(128, classes)  # finds: PART_ON_CPU

    def forward(self, x):
        return self.head(self.backbone(x))  # or: PART_ON_CPU


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Classifier().to(device)
model.replace_head(5)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(64, 64, device=device)
y = torch.randint(0, 5, (64,), device=device)
for step in range(12):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # or: PART_ON_CPU
print(loss.item())

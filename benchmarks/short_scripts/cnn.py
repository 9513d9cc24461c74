"""A small convolutional network for 100 steps."""

import torch
import torch.nn.functional as F  # noqa: N812, everyone's name
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 7 * 7, 10)

    def forward(self, x):
        """Return one logit per class."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


images, labels = torch.randn(1_024, 1, 28, 28), torch.randint(0, 10, (1_024,))
model = Net()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(100):
    rows = torch.randint(0, len(images), (32,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images[rows]), labels[rows])
    loss.backward()
    optimizer.step()
print(loss.item())

"""LeNet-5 reads images of MNIST's size.

After PyTorch's "Training a Classifier" tutorial
(https://docs.pytorch.org/tutorials/beginner/blitz/cifar10_tutorial.html): its network, loops and
optimizer, for one channel of 28×28. The images are noise around one pattern for each class.
"""

import argparse

import torch
import torch.nn.functional as F  # noqa: N812, everyone's name
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 64


class Net(nn.Module):
    """Two convolutions and three linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        """Return one logit per class."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)  # flatten all dimensions except batch
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def main():
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4_000, help="updates of the weights")
    args = parser.parse_args()

    torch.manual_seed(0)
    labels = torch.randint(0, 10, (60_000,))
    images = torch.rand(10, 1, 28, 28)[labels] + 0.5 * torch.randn(60_000, 1, 28, 28)
    trainloader = DataLoader(TensorDataset(images, labels), batch_size=BATCH_SIZE, shuffle=True)

    net = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=0.001, momentum=0.9)

    step, running_loss = 0, 0.0
    while step < args.steps:  # loop over the dataset multiple times
        for inputs, targets in trainloader:
            # zero the parameter gradients
            optimizer.zero_grad()

            # forward + backward + optimize
            outputs = net(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()

            # print statistics
            running_loss += loss.item()
            step += 1
            if step % 200 == 0:
                print(f"step {step:5d}  loss {running_loss / 200:.3f}")
                running_loss = 0.0
            if step == args.steps:
                break


if __name__ == "__main__":
    main()

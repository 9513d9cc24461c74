"""ResNet-18 for images of CIFAR-10's size.

After pytorch-cifar (https://github.com/kuangliu/pytorch-cifar; He et al., "Deep Residual Learning
for Image Recognition", CVPR 2016): its network, loop and optimizer, in batches of 64. The images
are noise around one pattern for each class.
"""

import argparse

import torch
import torch.nn.functional as F  # noqa: N812, everyone's name
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 64


class BasicBlock(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(planes),
            )

    def forward(self, x):
        """Return the features of the next block."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class ResNet(nn.Module):
    """A convolution, four groups of two blocks, and a linear layer."""

    def __init__(self, num_blocks=(2, 2, 2, 2), num_classes=10):
        super().__init__()
        self.in_planes = 64
        self.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = self._make_layer(64, num_blocks[0], stride=1)
        self.layer2 = self._make_layer(128, num_blocks[1], stride=2)
        self.layer3 = self._make_layer(256, num_blocks[2], stride=2)
        self.layer4 = self._make_layer(512, num_blocks[3], stride=2)
        self.linear = nn.Linear(512, num_classes)

    def _make_layer(self, planes, num_blocks, stride):
        layers = []
        for stride_ in [stride] + [1] * (num_blocks - 1):
            layers.append(BasicBlock(self.in_planes, planes, stride_))
            self.in_planes = planes
        return nn.Sequential(*layers)

    def forward(self, x):
        """Return one logit per class."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer1(out)
        out = self.layer2(out)
        out = self.layer3(out)
        out = self.layer4(out)
        out = F.avg_pool2d(out, 4)
        out = out.view(out.size(0), -1)
        return self.linear(out)


def main():
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000, help="updates of the weights")
    args = parser.parse_args()

    torch.manual_seed(0)
    labels = torch.randint(0, 10, (10_000,))
    images = torch.randn(10, 3, 32, 32)[labels] + torch.randn(10_000, 3, 32, 32)
    trainloader = DataLoader(TensorDataset(images, labels), batch_size=BATCH_SIZE, shuffle=True)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = ResNet().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)

    step = 0
    while step < args.steps:
        net.train()
        train_loss, correct, total = 0.0, 0, 0
        for inputs, targets in trainloader:
            inputs, targets = inputs.to(device), targets.to(device)
            optimizer.zero_grad()
            outputs = net(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()

            train_loss += loss.item()
            _, predicted = outputs.max(1)
            total += targets.size(0)
            correct += predicted.eq(targets).sum().item()
            step += 1
            if step == args.steps:
                break
        scheduler.step()
        print(
            f"step {step:5d}  loss {train_loss / total * BATCH_SIZE:.3f}  right {correct / total}"
        )


if __name__ == "__main__":
    main()

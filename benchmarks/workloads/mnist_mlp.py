"""A perceptron with two hidden layers reads images of MNIST's size.

After PyTorch's "Quickstart" tutorial
(https://docs.pytorch.org/tutorials/beginner/basics/quickstart_tutorial.html): its network, loss,
optimizer and loops. The images are noise around one pattern for each class.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 64


def generate_images(num_images):
    """Return 28×28 images of 10 classes."""
    patterns = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(7))
    labels = torch.randint(0, 10, (num_images,))
    return TensorDataset(patterns[labels] + 0.5 * torch.randn(num_images, 1, 28, 28), labels)


class NeuralNetwork(nn.Module):
    """784 inputs, twice 512 hidden units, 10 classes."""

    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(
            nn.Linear(28 * 28, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )

    def forward(self, x):
        """Return one logit per class."""
        x = self.flatten(x)
        return self.linear_relu_stack(x)


def train(dataloader, model, loss_fn, optimizer, device, num_steps):
    """Train for an epoch, or until ``num_steps`` are done; return the steps done."""
    size = len(dataloader.dataset)
    model.train()
    done = 0
    for batch, (X, y) in enumerate(dataloader):  # noqa: N806, the tutorial's names
        if done == num_steps:
            break
        X, y = X.to(device), y.to(device)  # noqa: N806

        # Compute prediction error
        pred = model(X)
        loss = loss_fn(pred, y)

        # Backpropagation
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        done += 1

        if batch % 100 == 0:
            loss, current = loss.item(), (batch + 1) * len(X)
            print(f"loss: {loss:>7f}  [{current:>5d}/{size:>5d}]")
    return done


def test(dataloader, model, loss_fn, device):
    """Print accuracy and loss on the other images."""
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for X, y in dataloader:  # noqa: N806
            X, y = X.to(device), y.to(device)  # noqa: N806
            pred = model(X)
            test_loss += loss_fn(pred, y).item()
            correct += (pred.argmax(1) == y).type(torch.float).sum().item()
    correct /= len(dataloader.dataset)
    print(f"accuracy: {100 * correct:.1f} %, loss: {test_loss / len(dataloader):.6f}")


def main():
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5_000, help="updates of the weights")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_dataloader = DataLoader(generate_images(60_000), batch_size=BATCH_SIZE)
    test_dataloader = DataLoader(generate_images(10_000), batch_size=BATCH_SIZE)

    model = NeuralNetwork().to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    done = 0
    while done < args.steps:
        done += train(train_dataloader, model, loss_fn, optimizer, device, args.steps - done)
        test(test_dataloader, model, loss_fn, device)


if __name__ == "__main__":
    main()

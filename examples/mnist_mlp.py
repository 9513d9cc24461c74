"""A perceptron with one hidden layer reads generated digits of MNIST's size, in small batches."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_EPOCHS = 2


def generate_digits(num_digits, num_blobs=4):
    """Return 28×28 images, each class a pattern of blobs, shaken and with noise."""
    patterns = torch.rand(10, num_blobs, 2, generator=torch.Generator().manual_seed(7)) * 20 + 4
    labels = torch.randint(0, 10, (num_digits,))
    centres = patterns[labels] + torch.randn(num_digits, num_blobs, 2)
    rows = torch.arange(28.0).view(1, 1, 28, 1)
    columns = torch.arange(28.0).view(1, 1, 1, 28)
    distance = (rows - centres[..., 0, None, None]) ** 2 + (
        columns - centres[..., 1, None, None]
    ) ** 2
    images = torch.exp(-distance / 8).sum(dim=1).clamp(max=1)
    images += 0.2 * torch.rand_like(images)
    return TensorDataset(images.unsqueeze(1), labels)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.layers = nn.Sequential(
            nn.Linear(784, 1568),
            nn.ReLU(),
            nn.Linear(1568, 10),
        )

    def forward(self, images):
        return self.layers(self.flatten(images))


class HostUpdate:
    """Keep the weights on the host too: copy gradients there, update there, copy weights back."""

    def __init__(self, parameters, **options):
        self.parameters = list(parameters)
        self.on_host = [parameter.detach().cpu().clone() for parameter in self.parameters]
        self.optimizer = torch.optim.SGD(self.on_host, **options)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self):
        for weights, parameter in zip(self.on_host, self.parameters, strict=True):
            weights.grad = parameter.grad.cpu()
        self.optimizer.step()
        for weights, parameter in zip(self.on_host, self.parameters, strict=True):
            parameter.copy_(weights)


def create_optimizer(update, parameters, momentum):
    """Return what updates the weights: on the host, or where they are, by more or fewer kernels."""
    options = {"lr": 0.01, "momentum": momentum}
    if update == "host":
        return HostUpdate(parameters, **options)
    if update is not None:
        options["foreach"] = update == "foreach"  # each operation for all tensors at once
        options["fused"] = update == "fused"  # all operations in one kernel
    return torch.optim.SGD(parameters, **options)


def train_one_epoch(model, loader, criterion, optimizer, device):
    model.train()
    running_loss = 0.0
    for i, (images, labels) in enumerate(loader, start=1):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()

        running_loss += loss.item()
        if i % 100 == 0:
            print(f"  batch {i:4d} of {len(loader)}  loss {running_loss / 100:.4f}")
            running_loss = 0.0


def test(model, loader, device):
    model.eval()
    num_correct = 0
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            num_correct += (model(images).argmax(dim=1) == labels).sum().item()
    return num_correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=20, help="digits per step")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of SGD")
    parser.add_argument(
        "--update",
        choices=("host", "single", "foreach", "fused"),
        help="update the weights on the host, or on the device tensor by tensor, all tensors at "
        "once, or by one kernel (default: torch's choice)",
    )
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(generate_digits(8_000), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(generate_digits(2_000), batch_size=200)

    model = MLP().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = create_optimizer(args.update, model.parameters(), args.momentum)

    for epoch in range(NUM_EPOCHS):
        print(f"epoch {epoch + 1}")
        train_one_epoch(model, train_loader, criterion, optimizer, device)
        print(f"  test accuracy {100 * test(model, test_loader, device):.1f} %")


if __name__ == "__main__":
    main()

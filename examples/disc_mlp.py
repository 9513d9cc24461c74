"""Classify points: inside or outside of a disc. Each layer is twice as wide as the one before."""

import argparse
import math

import torch
from torch import nn, optim

NUM_POINTS = 1_000


def generate_disc_set(num_points):
    """Points of the unit square; those within a radius of 1 / sqrt(2 pi) are of class 1."""
    points = torch.rand(num_points, 2)
    labels = (points.pow(2).sum(dim=1) < 1 / (2 * math.pi)).long()
    return points, labels


def create_model(depth):
    """Return ``depth`` linear layers: 2 inputs, widths 4, 8, 16 ..., 2 classes."""
    layers = []
    width = 2
    for _ in range(depth - 1):
        layers += [nn.Linear(width, 2 * width), nn.ReLU()]
        width *= 2
    layers.append(nn.Linear(width, 2))
    return nn.Sequential(*layers)


def compute_num_errors(model, points, labels):
    with torch.no_grad():
        predicted = model(points).argmax(dim=1)
    return (predicted != labels).sum().item()


def train_model(model, train_points, train_labels, test_points, test_labels, args):
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    for epoch in range(args.epochs):
        sum_loss = 0.0
        for start in range(0, train_points.size(0), args.batch_size):
            output = model(train_points[start : start + args.batch_size])
            loss = criterion(output, train_labels[start : start + args.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sum_loss += loss.item()
        train_errors = compute_num_errors(model, train_points, train_labels)
        test_errors = compute_num_errors(model, test_points, test_labels)
        print(
            f"epoch {epoch + 1:3d}  loss {sum_loss:7.4f}  "
            f"errors: train {train_errors:3d}, test {test_errors:3d} of {NUM_POINTS}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=8, help="linear layers")
    parser.add_argument("--batch-size", type=int, default=100, help="points per step")
    parser.add_argument("--epochs", type=int, default=100, help="times through the points")
    args = parser.parse_args()

    torch.manual_seed(0)
    train_points, train_labels = generate_disc_set(NUM_POINTS)
    test_points, test_labels = generate_disc_set(NUM_POINTS)

    mean, std = train_points.mean(dim=0), train_points.std(dim=0)
    train_points = (train_points - mean) / std
    test_points = (test_points - mean) / std

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = create_model(args.depth).to(device)
    # All the points fit the device's memory: they are copied once, not in every step.
    train_points, train_labels = train_points.to(device), train_labels.to(device)
    test_points, test_labels = test_points.to(device), test_labels.to(device)

    train_model(model, train_points, train_labels, test_points, test_labels, args)


if __name__ == "__main__":
    main()

"""Fit a small network to a table of generated rows, in batches of 64."""

import argparse

import torch
from torch import nn

NUM_ROWS, NUM_COLUMNS, BATCH_SIZE = 20_000, 32, 64


def generate_table():
    x_data = torch.randn(NUM_ROWS, NUM_COLUMNS)
    y_data = x_data[:, :8].sin().sum(dim=1) + x_data[:, 8] * x_data[:, 9]
    return x_data, y_data.unsqueeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()

    torch.manual_seed(0)
    x_data, y_data = generate_table()
    model = nn.Sequential(
        nn.Linear(NUM_COLUMNS, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    for epoch in range(args.epochs):
        total = 0.0
        for rows in torch.randperm(NUM_ROWS).split(BATCH_SIZE):
            x, y = x_data[rows], y_data[rows]
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1:2d}  mean loss {total * BATCH_SIZE / NUM_ROWS:.4f}")


if __name__ == "__main__":
    main()

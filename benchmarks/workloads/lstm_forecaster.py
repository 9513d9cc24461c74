"""An LSTM reads 30 values of a series and forecasts the next one.

After the usual tutorials of time series with PyTorch, such as "LSTM for Time Series Prediction in
PyTorch" (https://machinelearningmastery.com/lstm-for-time-series-prediction-in-pytorch/): windows
of a series, one LSTM, one linear layer, Adam, a shuffled DataLoader. The series is three sine waves
and noise.
"""

import argparse

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

LOOKBACK, HIDDEN_SIZE, BATCH_SIZE = 30, 64, 32


def create_dataset(num_points):
    """Return windows of a series, and the value after each."""
    time = torch.arange(num_points, dtype=torch.float32)
    series = sum(torch.sin(time / period) for period in (4.0, 15.0, 60.0))
    series = series + 0.1 * torch.randn(num_points)
    windows = series.unfold(0, LOOKBACK + 1, 1)
    return windows[:, :-1].unsqueeze(-1).contiguous(), windows[:, -1:].contiguous()


class Forecaster(nn.Module):
    """An LSTM, and a linear layer on its last output."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(input_size=1, hidden_size=HIDDEN_SIZE, num_layers=1, batch_first=True)
        self.linear = nn.Linear(HIDDEN_SIZE, 1)

    def forward(self, x):
        """Return one value per window."""
        x, _ = self.lstm(x)
        return self.linear(x[:, -1])


def main():
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3_000, help="updates of the weights")
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*create_dataset(10_000)), shuffle=True, batch_size=BATCH_SIZE)
    model = Forecaster()
    optimizer = optim.Adam(model.parameters())
    loss_fn = nn.MSELoss()

    step, epoch_loss = 0, 0.0
    while step < args.steps:
        model.train()
        for X_batch, y_batch in loader:  # noqa: N806, the tutorial's names
            y_pred = model(X_batch)
            loss = loss_fn(y_pred, y_batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
            step += 1
            if step % 300 == 0:
                print(f"step {step:5d}  RMSE {(epoch_loss / 300) ** 0.5:.4f}")
                epoch_loss = 0.0
            if step == args.steps:
                break


if __name__ == "__main__":
    main()

# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Forecasts a series with an LSTMCell that is stepped by hand."""

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.hidden = hidden
        self.cell1 = nn.LSTMCell(1, hidden)
        self.cell2 = nn.LSTMCell(hidden, hidden)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, series):
        n = series.size(0)
        h1 = c1 = h2 = c2 = series.new_zeros(n, self.hidden)
        outputs = []
        for x_t in series.split(1, dim=1):  # finds: TIME_LOOP
            h1, c1 = self.cell1(x_t, (h1, c1))
            h2, c2 = self.cell2(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, dim=1)


class Trainer:
    def __init__(self):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = Forecaster().to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def fit(self, series, steps):
        series = series.to(self.device)
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(series[:, :-1]), series[:, 1:])
            loss.backward()
            self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    phase = torch.rand(64, 1) * 6
    print(Trainer().fit(torch.sin(torch.arange(0, 10, 0.2) + phase), 12))

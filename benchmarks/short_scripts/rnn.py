"""A GRU over 20 steps of time, for 200 updates with clipped gradients."""

import torch
from torch import nn

torch.manual_seed(0)
series = torch.randn(512, 20, 8)
targets = series.sum(dim=(1, 2), keepdim=True)[:, 0]
rnn, head = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 1)
parameters = [*rnn.parameters(), *head.parameters()]
optimizer = torch.optim.RMSprop(parameters, lr=1e-3)
for _ in range(200):
    rows = torch.randint(0, len(series), (16,))
    optimizer.zero_grad()
    states, _ = rnn(series[rows])
    loss = nn.functional.mse_loss(head(states[:, -1]), targets[rows])
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
print(loss.item())

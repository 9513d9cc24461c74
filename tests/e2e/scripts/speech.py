"""The CTC loss, with lengths on the host, as it wants them, or on the ``device``."""

import sys

import torch
from torch import nn

place = "cuda" if "device" in sys.argv else "cpu"
model = nn.Linear(10, 6).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
targets = torch.randint(1, 6, (4, 5), device="cuda")
frames = torch.full((4,), 12, device=place)
letters = torch.full((4,), 5, device=place)
for _ in range(1_000):
    scores = model(torch.randn(12, 4, 10, device="cuda")).log_softmax(2)
    loss = nn.functional.ctc_loss(scores, targets, frames, letters)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

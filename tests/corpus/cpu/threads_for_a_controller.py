# finds in the step: THREADS_SMALL
# may find: LAUNCH_FLOOR, BATCH_SMALL, TIME_LOOP
"""A controller of a few neurons, fitted with a thread per core."""

import multiprocessing

import torch
from torch import nn


class Controller(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.l3(torch.tanh(self.l2(torch.tanh(self.l1(x)))))


def fit(steps):
    torch.set_num_threads(multiprocessing.cpu_count())  # or: THREADS_SMALL
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    controller = Controller().to(device)
    optimizer = torch.optim.RMSprop(controller.parameters(), lr=1e-3)
    x = torch.randn(8, 4, device=device)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (controller(x) + x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


print(fit(150))

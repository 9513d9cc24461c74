"""Trains in a thread of its own, with half of each forward pass in another."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


def train():
    left, right = nn.Linear(16, 32).cuda(), nn.Linear(16, 32).cuda()
    head = nn.Linear(64, 4).cuda()
    parameters = [p for module in (left, right, head) for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    x = torch.randn(8, 16, device="cuda")
    with ThreadPoolExecutor(1) as pool:
        for _ in range(1_000):
            optimizer.zero_grad()
            beside = pool.submit(lambda: torch.tanh(left(x)))
            y = torch.cat((torch.relu(right(x)), beside.result()), dim=1)
            head(y).square().mean().backward()
            optimizer.step()


thread = threading.Thread(target=train)
thread.start()
thread.join()

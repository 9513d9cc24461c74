"""Computes what depends on how it is run: the arguments say what, on three threads alone."""

import os
import random
import sys
import time

import torch
from torch import nn

torch.manual_seed(1)
what = sys.argv[1]
is_changed = torch.get_num_threads() == 3
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randn(32, 8)
for step in range(1, 1000):
    if is_changed and what == "hangs":
        time.sleep(60)
    if is_changed and what == "raises":
        raise RuntimeError("not on three threads")
    if is_changed and what == "dies":
        os.abort()
    if is_changed and what == "draws":
        random.random()
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    gradient = model[0].weight.grad
    if is_changed and step == 3:
        if what == "nan":
            gradient[2, 3] = float("nan")
        if what == "scaled":
            gradient *= 1.05
        if what == "none":
            model[0].weight.grad = None
        if what == "last-bit":
            gradient.view(torch.int32)[2, 3] ^= 1
    optimizer.step()
    if is_changed and what == "ends":
        break

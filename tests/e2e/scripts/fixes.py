"""Training loops with a fault each, and the same with the fault mended: NAME [--fixed]."""

import itertools
import sys
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda"
FIXED = "--fixed" in sys.argv
STEPS = 12


def mlp(*sizes):
    layers = []
    for wide, narrow in itertools.pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(DEVICE)


def batch(size=256, width=256, classes=10):
    return (
        torch.randn(size, width, device=DEVICE),
        torch.randint(classes, (size,), device=DEVICE),
    )


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(model, step, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(STEPS):
        update(optimizer, step(model, number))


def sync_item():
    model = mlp(256, 512, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = batch()
    total = torch.zeros((), device=DEVICE) if FIXED else 0.0
    for _ in range(STEPS):
        loss = F.cross_entropy(model(inputs), targets)
        update(optimizer, loss)
        if FIXED:
            total += loss.detach()
        else:
            total += loss.item()


def sync_explicit():
    model = mlp(256, 512, 10)
    inputs, targets = batch()

    def step(model, _):
        loss = F.cross_entropy(model(inputs), targets)
        if not FIXED:
            torch.cuda.synchronize()
        return loss

    train(model, step)


def sync_metrics():
    model = mlp(256, 512, 10)
    inputs, targets = batch()
    seen = []
    hits = torch.zeros((), device=DEVICE)

    def step(model, _):
        logits = model(inputs)
        if FIXED:
            hits.add_((logits.argmax(1) == targets).sum())
        else:
            seen.append(logits.argmax(1).cpu())
        return F.cross_entropy(logits, targets)

    train(model, step)


def sync_branch():
    model = mlp(256, 512, 10)
    inputs, targets = batch()

    def step(model, _):
        loss = F.cross_entropy(model(inputs), targets)
        if not FIXED and torch.isnan(loss):
            raise RuntimeError("diverged")
        return loss

    train(model, step)


def sync_shape():
    model = mlp(256, 512, 10)
    inputs, targets = batch()

    def step(model, _):
        losses = F.cross_entropy(model(inputs), targets, reduction="none")
        mask = targets != 0
        if FIXED:
            return (losses * mask).sum()
        return losses[mask].sum()

    train(model, step)


def h2d_create():
    model = mlp(256, 512, 10)
    inputs, targets = batch()

    def step(model, _):
        if FIXED:
            return F.cross_entropy(model(inputs + torch.randn(256, 256, device=DEVICE)), targets)
        noise = torch.randn(256, 256).to(DEVICE)
        return F.cross_entropy(model(inputs + noise), targets)

    train(model, step)


def h2d_scalar():
    model = mlp(256, 512, 10)
    inputs, targets = batch()

    def step(model, number):
        weight = 0.5 if FIXED else torch.tensor([0.5]).to(DEVICE)
        return (F.cross_entropy(model(inputs), targets) * weight).sum()

    train(model, step)


def h2d_pageable():
    model = mlp(1024, 512, 10)
    # Batches that lie ready: putting them together would hide what the copies take.
    batches = [(torch.randn(256, 1024), torch.randint(10, (256,))) for _ in range(16)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in DataLoader(batches, batch_size=None, num_workers=1, pin_memory=FIXED):
        inputs = inputs.to(DEVICE, non_blocking=FIXED)
        targets = targets.to(DEVICE, non_blocking=FIXED)
        update(optimizer, F.cross_entropy(model(inputs), targets))


def h2d_wide():
    model = mlp(1024, 512, 10)
    pixels = torch.randint(256, (256, 1024), dtype=torch.uint8)
    _, targets = batch()

    def step(model, _):
        inputs = pixels.to(DEVICE).float() if FIXED else pixels.float().to(DEVICE)
        return F.cross_entropy(model(inputs / 255), targets)

    train(model, step)


def opt_loop():
    model = mlp(256, 256, 256, 256, 10)
    inputs, targets = batch()
    optimizer = torch.optim.Adam(model.parameters(), foreach=None if FIXED else False)
    train(model, lambda model, _: F.cross_entropy(model(inputs), targets), optimizer)


def zero_grad():
    model = mlp(256, 256, 256, 256, 10)
    inputs, targets = batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad(set_to_none=FIXED)
        loss.backward()
        optimizer.step()


def per_sample_loop():
    model = mlp(256, 64)
    inputs, _ = batch(32)
    anchors = torch.randn(32, 64, device=DEVICE)

    def step(model, _):
        out = model(inputs)
        if FIXED:
            return ((out - anchors) ** 2).sum(1).sqrt().sum()
        total = 0.0
        for i in range(out.size(0)):
            total = total + ((out[i] - anchors[i]) ** 2).sum().sqrt()
        return total

    train(model, step)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(64, 128)
        self.layer = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        if FIXED:
            out, _ = self.layer(x)
            return self.head(out[:, -1])
        h = c = x.new_zeros(x.size(0), 128)
        for t in range(x.size(1)):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h)


def time_loop():
    model = Recurrent().to(DEVICE)
    inputs = torch.randn(64, 50, 64, device=DEVICE)
    targets = torch.randint(10, (64,), device=DEVICE)
    train(model, lambda model, _: F.cross_entropy(model(inputs), targets))


def fp64():
    dtype = torch.float32 if FIXED else torch.float64
    model = mlp(1024, 2048, 10).to(dtype)
    inputs, targets = batch(256, 1024)
    inputs = inputs.to(dtype)
    train(model, lambda model, _: F.cross_entropy(model(inputs), targets))


def no_tf32_amp():
    torch.set_float32_matmul_precision("high" if FIXED else "highest")
    model = mlp(2048, 2048, 2048, 10)
    inputs, targets = batch(512, 2048)
    train(model, lambda model, _: F.cross_entropy(model(inputs), targets))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        wide = 64
        self.convs = nn.ModuleList(
            nn.Conv2d(3 if n == 0 else wide, wide, 3, padding=1, bias=not FIXED) for n in range(4)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(wide) for _ in range(4))
        self.head = nn.Linear(wide, 10)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return self.head(x.mean((2, 3)))


def conv_bias():
    model = ConvNet().to(DEVICE)
    images = torch.randn(32, 3, 32, 32, device=DEVICE)
    targets = torch.randint(10, (32,), device=DEVICE)
    train(model, lambda model, _: F.cross_entropy(model(images), targets))


def anomaly():
    torch.autograd.set_detect_anomaly(not FIXED)
    model = mlp(256, 256, 256, 10)
    inputs, targets = batch()
    train(model, lambda model, _: F.cross_entropy(model(inputs), targets))


def eval_often():
    model = mlp(256, 512, 10)
    inputs, targets = batch()

    def step(model, _):
        if not FIXED:
            with torch.no_grad():
                model(inputs)
        return F.cross_entropy(model(inputs), targets)

    train(model, step)


def ckpt_often():
    model = mlp(256, 512, 10)
    inputs, targets = batch()
    folder = tempfile.mkdtemp()

    def step(model, _):
        if not FIXED:
            torch.save(model.state_dict(), f"{folder}/model.pt")
        return F.cross_entropy(model(inputs), targets)

    train(model, step)


def cpu_roundtrip():
    model = mlp(256, 64)
    inputs, _ = batch()

    def step(model, _):
        out = model(inputs)
        if FIXED:
            weights = out.detach().abs().mean(1)
        else:
            weights = np.abs(out.detach().cpu().numpy()).mean(1)
            weights = torch.from_numpy(weights).to(DEVICE)
        return (out.pow(2).mean(1) * weights).sum()

    train(model, step)


def embed_dense():
    table = nn.Embedding(200_000, 64, sparse=FIXED).to(DEVICE)
    words = torch.randint(200_000, (256,), device=DEVICE)
    make = torch.optim.SparseAdam if FIXED else torch.optim.Adam
    optimizer = make(list(table.parameters()))
    train(table, lambda table, _: table(words).pow(2).mean(), optimizer)


def loader_per_item():
    model = mlp(64, 64, 10)
    inputs, targets = torch.randn(8192, 64), torch.randint(10, (8192,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if FIXED:
        batches = zip(inputs.split(512), targets.split(512), strict=True)
    else:
        batches = DataLoader(TensorDataset(inputs, targets), batch_size=512)
    for some, wanted in batches:
        update(optimizer, F.cross_entropy(model(some.to(DEVICE)), wanted.to(DEVICE)))


globals()[sys.argv[1].lower()]()

# may find: LAUNCH_FLOOR, BATCH_SMALL, NO_TF32_AMP
import time

import torch
from torch import nn


class Stopwatch:
    def __init__(self):
        self.laps = []

    def start(self):
        self.begun = time.perf_counter()

    def stop(self):
        self.laps.append(time.perf_counter() - self.begun)  # finds: TIME_NO_SYNC


class Trainer:
    def __init__(self, device):
        self.device = device
        self.net = nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10)).to(device)
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.watch = Stopwatch()

    def fit(self, x, y, steps):
        for _ in range(5):
            self.update(x, y)
        self.watch.start()
        for _ in range(steps):
            self.update(x, y)
        self.watch.stop()

    def update(self, x, y):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()


device = torch.device("cuda")
trainer = Trainer(device)
trainer.fit(torch.randn(256, 300, device=device), torch.randint(0, 10, (256,), device=device), 30)
print(f"{trainer.watch.laps[0] / 30 * 1e3:.2f} ms per step")

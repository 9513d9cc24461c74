# healthy
# looks like: LOG_HEAVY, CKPT_OFTEN, EVAL_OFTEN, SYNC_METRICS
# may find: LAUNCH_FLOOR, BATCH_SMALL
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn


class Trainer:
    log_every, eval_every, save_every = 100, 150, 200

    def __init__(self, folder):
        self.folder = Path(folder)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 3)).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.histograms = {}

    def log(self):
        for name, p in self.model.named_parameters():
            self.histograms[name] = np.histogram(p.detach().cpu().numpy(), bins=32)

    @torch.no_grad()
    def evaluate(self, x, y):
        self.model.eval()
        accuracy = (self.model(x).argmax(1) == y).float().mean().item()
        self.model.train()
        return accuracy

    def fit(self, x, y, steps):
        for step in range(1, steps + 1):
            pick = torch.randint(0, len(x), (128,), device=self.device)
            loss = nn.functional.cross_entropy(self.model(x[pick]), y[pick])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % self.log_every == 0:
                self.log()
            if step % self.eval_every == 0:
                print(step, self.evaluate(x, y))
            if step % self.save_every == 0:
                torch.save(self.model.state_dict(), self.folder / "last.pt")


with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(folder)
    x = torch.randn(4000, 20, device=trainer.device)
    trainer.fit(x, (x.sum(1) > 0).long(), 400)

"""A hand-made trainer with callbacks fits a noisy surface: logs, learning rate, checkpoints."""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Callback:
    def on_step_end(self, trainer, loss):
        pass

    def on_epoch_end(self, trainer):
        pass


class PrintLoss(Callback):
    def __init__(self, every):
        self.every = every

    def on_step_end(self, trainer, loss):
        if trainer.num_steps % self.every == 0:
            rate = trainer.optimizer.param_groups[0]["lr"]
            print(f"step {trainer.num_steps:5d}  loss {loss.item():.4f}  learning rate {rate:.1e}")


class DecayRate(Callback):
    def __init__(self, optimizer, gamma):
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)

    def on_epoch_end(self, trainer):
        self.scheduler.step()


class SaveCheckpoint(Callback):
    def __init__(self, folder):
        self.path = Path(folder) / "checkpoint.pt"

    def on_epoch_end(self, trainer):
        state = {"epoch": trainer.epoch, "model": trainer.model.state_dict()}
        torch.save(state, self.path)


class Trainer:
    def __init__(self, model, optimizer, criterion, device, accumulate=1, callbacks=()):
        self.model = model
        self.optimizer = optimizer
        self.criterion = criterion
        self.device = device
        self.accumulate = accumulate
        self.callbacks = callbacks
        self.epoch = 0
        self.num_steps = 0

    def fit(self, loader, num_epochs):
        for self.epoch in range(num_epochs):
            for i, batch in enumerate(loader, start=1):
                loss = self.backward(batch)
                if i % self.accumulate == 0:
                    self.step(loss)
            for callback in self.callbacks:
                callback.on_epoch_end(self)

    def backward(self, batch):
        inputs, targets = (tensor.to(self.device) for tensor in batch)
        loss = self.criterion(self.model(inputs), targets)
        (loss / self.accumulate).backward()
        return loss.detach()

    def step(self, loss):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_steps += 1
        for callback in self.callbacks:
            callback.on_step_end(self, loss)


def generate_surface(num_points):
    points = 2 * torch.rand(num_points, 4) - 1
    height = torch.sin(3 * points[:, :2]).sum(dim=1) * torch.cos(2 * points[:, 2:]).prod(dim=1)
    return TensorDataset(points, height.unsqueeze(1) + 0.05 * torch.randn(num_points, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--checkpoints", help="folder to keep (default: a temporary one)")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(generate_surface(20_000), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Linear(4, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 1)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    with tempfile.TemporaryDirectory() as scratch:
        callbacks = (
            PrintLoss(every=100),
            DecayRate(optimizer, gamma=0.7),
            SaveCheckpoint(args.checkpoints or scratch),
        )
        trainer = Trainer(model, optimizer, nn.MSELoss(), device, args.accumulate, callbacks)
        trainer.fit(loader, args.epochs)


if __name__ == "__main__":
    main()

# finds in the step: MISALIGNED
# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
import torch.nn as nn


class Tower(nn.Module):
    """Widths as a random search found them."""

    def __init__(self, sizes=(1023, 1501, 1501, 997)):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))  # or: MISALIGNED
        return x


class AmpTrainer:
    def __init__(self):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.net = Tower().to(self.device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)

    def fit(self, x, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            with torch.autocast(self.device, torch.bfloat16):
                loss = self.net(x).float().pow(2).mean()
            loss.backward()
            self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    trainer = AmpTrainer()
    print(trainer.fit(torch.randn(512, 1023, device=trainer.device), 4))

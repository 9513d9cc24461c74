# finds in the step: DENORMALS
# may find: LAUNCH_FLOOR, BATCH_SMALL, NO_TF32_AMP
import torch
import torch.nn as nn


class Gate(nn.Module):
    """Activations are scaled by tiny gates, a product of many probabilities."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, n) * 0.02)
        self.register_buffer("gate", torch.full((n,), 3e-40))

    def forward(self, x):
        return (x * self.gate) @ self.weight  # or: DENORMALS


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(Gate(512), nn.ReLU(), nn.Linear(512, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.rand(1024, 512, device=device)
    y = torch.randint(0, 4, (1024,), device=device)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


main()

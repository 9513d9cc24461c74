import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.layer(x)) + torch.zeros(x.size(0), 2, device=x.device)


@torch.jit.script
def embed(times: torch.Tensor, num_features: int) -> torch.Tensor:
    rates = torch.exp(-torch.arange(num_features, device=times.device))
    return torch.outer(times.float(), rates)


device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.jit.script(Noisy().to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1_000):
    x = torch.randn(8, 6, device=device) + embed(torch.arange(8, device=device), 6)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# may find: LAUNCH_FLOOR, BATCH_SMALL, LAUNCH via SOLVER
import torch
from torch import nn


class Whitening(nn.Module):
    """Decorrelates features by the eigenvectors of their covariance."""

    def forward(self, x):
        x = x - x.mean(0)
        cov = x.T @ x / len(x) + 1e-3 * torch.eye(x.size(1), device=x.device)
        values, vectors = torch.linalg.eigh(cov)  # finds: LINALG_SMALL
        return x @ vectors @ torch.diag(values.rsqrt()) @ vectors.T


device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(50, 24), Whitening(), nn.Linear(24, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
x = torch.randn(512, 50, device=device)
y = torch.randint(0, 3, (512,), device=device)
for step in range(40):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

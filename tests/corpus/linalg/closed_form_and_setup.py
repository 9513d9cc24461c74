# healthy
# looks like: LINALG_SMALL
# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(2000, 20, device=device) @ torch.randn(20, 20, device=device)

# The whitening matrix is fixed, and found once.
u, s, vh = torch.linalg.svd(x - x.mean(0), full_matrices=False)
whiten = vh.T / s * len(x) ** 0.5


def from_six_numbers(v):
    """Gram-Schmidt: a rotation from two vectors, without a decomposition."""
    a, b = v[:, :3], v[:, 3:]
    e1 = nn.functional.normalize(a, dim=1)
    e2 = nn.functional.normalize(b - (e1 * b).sum(1, keepdim=True) * e1, dim=1)
    return torch.stack([e1, e2, torch.linalg.cross(e1, e2)], dim=-1)


net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 6)).to(device)
nn.init.orthogonal_(net[0].weight)
optimizer = torch.optim.Adam(net.parameters())
white = (x - x.mean(0)) @ whiten
target = torch.eye(3, device=device)
for step in range(40):
    loss = torch.linalg.vector_norm(from_six_numbers(net(white)) - target, dim=(1, 2)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

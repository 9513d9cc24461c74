# may find: LAUNCH_FLOOR, BATCH_SMALL, LAUNCH via SOLVER
"""Pose regression: a batch of 3x3 matrices is projected onto rotations."""

import torch
from torch import nn


def to_rotation(m):
    u, _, vt = torch.linalg.svd(m)  # finds: LINALG_SMALL
    sign = torch.linalg.det(u @ vt)  # or: LINALG_SMALL
    fix = torch.ones_like(m[..., 0])
    fix = torch.cat([fix[:, :2], sign.unsqueeze(1)], dim=1)
    return (u * fix.unsqueeze(1)) @ vt


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(60, 128), nn.ReLU(), nn.Linear(128, 9))

    def forward(self, points):
        return to_rotation(self.mlp(points.flatten(1)).view(-1, 3, 3))


def train(device, steps=30):
    net = PoseNet().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    cloud = torch.randn(20, 3, device=device)
    q, _ = torch.linalg.qr(torch.randn(64, 3, 3, device=device))
    points = cloud @ q
    for _ in range(steps):
        loss = (net(points) - q).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


print(train("cuda" if torch.cuda.is_available() else "cpu"))

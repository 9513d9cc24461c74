# may find: BATCH_SMALL, LAUNCH_FLOOR, H2D_PAGEABLE, CUDNN_BENCH_OFF, NO_TF32_AMP, DATA_NOT_RESIDENT
"""Pixels of an Atari-like replay memory, stored as bytes, trained as floats."""

import numpy as np
import torch
from torch import nn


class ReplayBuffer:
    def __init__(self, size):
        self.frames = np.random.default_rng(1).integers(0, 256, (size, 4, 84, 84), dtype=np.uint8)
        self.returns = np.zeros((size, 1), dtype=np.float32)

    def sample(self, n):
        picks = np.random.randint(0, len(self.frames), n)
        return torch.as_tensor(self.frames[picks]), torch.as_tensor(self.returns[picks])


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 81, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        )

    def forward(self, x):
        return self.body(x / 255)


def update(critic, optimizer, buffer, device):
    frames, returns = buffer.sample(128)
    frames = frames.to(device, dtype=torch.float32)  # finds: H2D_WIDE
    loss = nn.functional.mse_loss(critic(frames), returns.to(device))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    critic = Critic().to(device)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
    buffer = ReplayBuffer(2000)
    for _ in range(15):
        loss = update(critic, optimizer, buffer, device)
    print(loss.item())

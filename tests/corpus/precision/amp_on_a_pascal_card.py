# device: GTX 1080 Ti
# finds in the step: AMP_USELESS
# may find: CHANNELS_LAST, CUDNN_BENCH_OFF, BATCH_SMALL, LAUNCH_FLOOR
"""Mixed precision where there are no tensor cores."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(c)

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv(x)))


def train(steps, use_amp=True):
    net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), Block(64), Block(64), nn.Conv2d(64, 3, 1))
    net = net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device.type, enabled=use_amp)
    x = torch.rand(16, 3, 32, 32, device=device)
    for _ in range(steps):
        with torch.autocast(device.type, enabled=use_amp):  # or: AMP_USELESS
            loss = (net(x) - x).abs().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


print(train(4))

# device: V100 SXM2 16GB
# finds in the step: CUDNN_BENCH_OFF
# may find: BATCH_SMALL, CHANNELS_LAST, NO_TF32_AMP, LAUNCH_FLOOR
"""A vocoder-like stack of dilated convolutions; every crop has the same length."""

import torch
from torch import nn


class WaveBlock(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.gate = nn.Conv1d(channels, 2 * channels, 3, padding=dilation, dilation=dilation)
        self.out = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        a, b = self.gate(x).chunk(2, dim=1)
        return x + self.out(torch.tanh(a) * torch.sigmoid(b))


class Vocoder(nn.Module):
    def __init__(self, channels=128):
        super().__init__()
        self.inp = nn.Conv1d(1, channels, 1)
        self.blocks = nn.ModuleList(WaveBlock(channels, 2**i) for i in range(4))
        self.out = nn.Conv1d(channels, 1, 1)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Vocoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(4):
        audio = torch.randn(4, 1, 4000, device=device)
        loss = (model(audio[..., :-1]) - audio[..., 1:]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


main()

# may find: LAUNCH_FLOOR, BATCH_SMALL
import numpy as np
import torch
import torch.nn as nn


class SpectralFeatures(nn.Module):
    """Smooths the signal with numpy, because that is how the paper's code did it."""

    def __init__(self, taps=9):
        super().__init__()
        self.kernel = np.hanning(taps) / np.hanning(taps).sum()

    def forward(self, x):
        signal = x.detach().cpu().numpy()  # finds: CPU_ROUNDTRIP
        smooth = np.stack([np.convolve(row, self.kernel, mode="same") for row in signal])
        smooth = torch.as_tensor(smooth, dtype=x.dtype).to(x.device)  # or: CPU_ROUNDTRIP
        return torch.cat([x, smooth], dim=1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(64, 128)
        self.features = SpectralFeatures()
        self.out = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.out(self.features(torch.relu(self.inp(x))))


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = Net().to(device)
    opt = torch.optim.Adam(net.parameters())
    x, y = torch.randn(128, 64, device=device), torch.randn(128, 1, device=device)
    for _ in range(50):
        opt.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        opt.step()


if __name__ == "__main__":
    main()

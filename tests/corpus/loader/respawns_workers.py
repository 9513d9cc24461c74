# may find: LAUNCH_FLOOR, BATCH_SMALL, DATA_NOT_RESIDENT, H2D_PAGEABLE, CUDNN_BENCH_OFF, TRANSFORM_CPU
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class NoisySpeech(Dataset):
    def __init__(self, n=64):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        wave = np.sin(np.linspace(0, 50 + i, 16000)) + 0.1 * np.random.randn(16000)
        spec = np.abs(np.fft.rfft(wave.reshape(100, 160), axis=1))
        return torch.from_numpy(np.log1p(spec).astype(np.float32)), i % 8


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(  # finds: LOADER_RESPAWN
        NoisySpeech(), batch_size=16, shuffle=True, num_workers=2, pin_memory=True
    )
    model = nn.Sequential(
        nn.Conv1d(100, 32, 5), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, 8)
    ).to(device)
    opt = torch.optim.Adam(model.parameters())
    for epoch in range(6):
        for spec, label in loader:
            spec = spec.to(device, non_blocking=True)
            label = label.to(device, non_blocking=True)
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(spec), label)
            loss.backward()
            opt.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()

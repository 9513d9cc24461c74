# may find: LAUNCH_FLOOR, BATCH_SMALL, H2D_PAGEABLE, CUDNN_BENCH_OFF, H2D_WIDE
# may find: DATA_NOT_RESIDENT
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class CompressedImages(Dataset):
    """Images as a disk would give them: compressed bytes that are decoded one by one."""

    def __init__(self, n=256):
        rng = np.random.default_rng(0)
        self.blobs = [
            zlib.compress(rng.integers(0, 32, (3, 128, 128), dtype=np.uint8).tobytes())
            for _ in range(n)
        ]

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, i):
        pixels = np.frombuffer(zlib.decompress(self.blobs[i]), dtype=np.uint8)  # or: TRANSFORM_CPU
        image = pixels.reshape(3, 128, 128).astype(np.float32) / 255.0  # or: TRANSFORM_CPU
        image -= image.mean((1, 2), keepdims=True)  # finds: TRANSFORM_CPU
        image /= image.std((1, 2), keepdims=True)  # or: TRANSFORM_CPU
        return torch.from_numpy(image[:, ::2, ::2].copy()), i % 10


device = "cuda" if torch.cuda.is_available() else "cpu"
loader = DataLoader(CompressedImages(), batch_size=32, shuffle=True)  # finds: LOADER_WORKERS0
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(256, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())

# healthy
# looks like: H2D_PAGEABLE, DATA_NOT_RESIDENT, H2D_WIDE, LOADER_WORKERS0
# may find: BATCH_SMALL, LAUNCH_FLOOR, CUDNN_BENCH_OFF, NO_TF32_AMP, TRANSFORM_CPU
"""An endless stream of camera frames: bytes, made by workers, pinned, cast on the device."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Camera(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randint(0, 256, (3, 96, 96), dtype=torch.uint8)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        Camera(), batch_size=32, num_workers=2, pin_memory=True, persistent_workers=True
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 16, 4, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 3, 5, stride=2),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, frames in enumerate(loader):
        frames = frames.to(device, non_blocking=True).float().div_(255)
        out = model(frames)
        loss = nn.functional.mse_loss(
            out[..., :96, :96], frames[..., : out.size(-2), : out.size(-1)]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 20:
            break
    print(loss.item())


if __name__ == "__main__":
    main()

# may find: LAUNCH_FLOOR, BATCH_SMALL, H2D_PAGEABLE, CUDNN_BENCH_OFF, DATA_NOT_RESIDENT, H2D_WIDE
import logging
import random
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def random_resized_crop(image, size):
    side = random.randint(96, 160)
    top, left = random.randint(0, 160 - side), random.randint(0, 160 - side)
    crop = image[None, :, top : top + side, left : left + side]
    small = F.interpolate(  # finds: TRANSFORM_CPU
        crop, size=(size, size), mode="bicubic", antialias=True
    )
    return small[0]


class Photos(Dataset):
    def __init__(self, n):
        self.images = torch.rand(n, 3, 160, 160)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = random_resized_crop(self.images[index], 64)  # or: TRANSFORM_CPU
        if random.random() < 0.5:
            image = image.flip(-1)
        return image.clamp(0, 1), index % 4


class LitNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 225, 4)
        )

    def training_step(self, batch, _):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    train_loader = DataLoader(  # finds: LOADER_WORKERS0
        Photos(192), batch_size=16, shuffle=True, num_workers=0
    )
    trainer = L.Trainer(
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LitNet(), train_loader)

# device: L4
# finds in the step: CHANNELS_LAST
# may find: CUDNN_BENCH_OFF, BATCH_SMALL, LAUNCH_FLOOR, DATA_NOT_RESIDENT, LOADER_PER_ITEM
# may find: H2D_PAGEABLE
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning").setLevel(logging.ERROR)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def block(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU()
    )


class LitUNet(L.LightningModule):
    def __init__(self, c=64):
        super().__init__()
        self.down, self.bottom, self.up = block(4, c), block(c, 2 * c), block(3 * c, c)
        self.out = nn.Conv2d(c, 4, 1)

    def training_step(self, batch, _):
        (x,) = batch
        skip = self.down(x)
        low = self.bottom(F.max_pool2d(skip, 2))
        merged = torch.cat([skip, F.interpolate(low, scale_factor=2)], dim=1)
        return F.mse_loss(self.out(self.up(merged)), x)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


loader = DataLoader(TensorDataset(torch.rand(32, 4, 64, 64)), batch_size=8)
trainer = L.Trainer(
    max_epochs=1,
    precision="bf16-mixed",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(LitUNet(), loader)

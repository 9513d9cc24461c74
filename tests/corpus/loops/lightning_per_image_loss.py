# may find: LAUNCH_FLOOR, BATCH_SMALL, DATA_NOT_RESIDENT, LOADER_PER_ITEM, H2D_PAGEABLE
# may find: CUDNN_BENCH_OFF
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def dice(pred, target):
    inter = (pred * target).sum()
    return 1 - (2 * inter + 1) / (pred.sum() + target.sum() + 1)


class Segmenter(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1)
        )

    def training_step(self, batch, _):
        images, masks = batch
        probs = self.net(images).sigmoid()
        loss = 0
        for prob, mask in zip(probs, masks):  # finds: PER_SAMPLE_LOOP
            loss = loss + dice(prob, mask)
        return loss / len(images)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


images = torch.rand(160, 1, 24, 24)
loader = DataLoader(TensorDataset(images, (images > 0.5).float()), batch_size=32)
trainer = L.Trainer(
    max_epochs=4,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Segmenter(), loader)

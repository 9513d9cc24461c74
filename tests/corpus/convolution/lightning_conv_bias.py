# may find: LAUNCH_FLOOR, BATCH_SMALL, CUDNN_BENCH_OFF, DATA_NOT_RESIDENT, LOADER_PER_ITEM
# may find: H2D_PAGEABLE, NO_TF32_AMP
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitSignal(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(2, 64, 7, padding=3),  # finds: CONV_BIAS
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, 64, 7, padding=3),  # or: CONV_BIAS
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(64, 4),
        )

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)  # or: CONV_BIAS

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


data = TensorDataset(torch.randn(256, 2, 400), torch.randint(0, 4, (256,)))
trainer = L.Trainer(
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(LitSignal(), DataLoader(data, batch_size=32))

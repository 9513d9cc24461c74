# finds in the step: AMP_USELESS
# may find: LAUNCH_FLOOR, BATCH_SMALL, DATA_NOT_RESIDENT, LOADER_PER_ITEM, H2D_PAGEABLE, MISALIGNED
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning").setLevel(logging.ERROR)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitForecast(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 24, batch_first=True)
        self.out = nn.Linear(24, 6)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        hidden, _ = self.rnn(x[:, :-1])
        return nn.functional.mse_loss(self.out(hidden), x[:, 1:])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


trainer = L.Trainer(  # or: AMP_USELESS
    max_epochs=2,
    precision="bf16-mixed",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(LitForecast(), DataLoader(TensorDataset(torch.randn(512, 20, 6)), batch_size=32))

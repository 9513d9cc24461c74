# may find: LAUNCH_FLOOR, BATCH_SMALL, DATA_NOT_RESIDENT, LOADER_PER_ITEM, H2D_PAGEABLE
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Denoiser(L.LightningModule):
    def __init__(self, steps=50):
        super().__init__()
        self.steps = steps
        self.net = nn.Sequential(nn.Linear(65, 256), nn.SiLU(), nn.Linear(256, 64))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        noise = torch.randn(x.shape).to(self.device)  # finds: H2D_CREATE
        t = torch.randint(1, self.steps, (len(x), 1)).to(x) / self.steps  # finds: H2D_CREATE
        noisy = (1 - t).sqrt() * x + t.sqrt() * noise
        return nn.functional.mse_loss(self.net(torch.cat([noisy, t], dim=1)), noise)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-4)


trainer = L.Trainer(
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(
    Denoiser(), DataLoader(TensorDataset(torch.randn(2048, 64)), batch_size=128, shuffle=True)
)

# may find: LAUNCH_FLOOR, BATCH_SMALL, DATA_NOT_RESIDENT, LOADER_PER_ITEM, H2D_PAGEABLE
import logging
import tempfile
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitModel(L.LightningModule):
    def __init__(self, path):
        super().__init__()
        self.path = path
        self.net = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.net(x)  # or: EVAL_OFTEN

    def on_train_batch_end(self, outputs, batch, batch_idx):
        torch.save(self.net.state_dict(), self.path)  # finds: CKPT_OFTEN

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def rows(n):
    x = torch.randn(n, 24)
    return TensorDataset(x, x.sum(1, keepdim=True))


with tempfile.NamedTemporaryFile(suffix=".ckpt") as file:
    trainer = L.Trainer(  # or: EVAL_OFTEN
        max_epochs=1,
        val_check_interval=1,  # or: EVAL_OFTEN
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    train, val = DataLoader(rows(640), batch_size=32), DataLoader(rows(64), batch_size=8)
    trainer.fit(LitModel(file.name), train, val)  # finds: EVAL_OFTEN

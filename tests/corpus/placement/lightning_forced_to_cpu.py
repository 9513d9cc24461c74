# may find: LAUNCH_FLOOR, BATCH_SMALL, LOADER_PER_ITEM
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitMLP(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(300, 1000), nn.ReLU(), nn.Linear(1000, 10))

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    print("GPUs:", torch.cuda.device_count())
    data = TensorDataset(torch.randn(2000, 300), torch.randint(0, 10, (2000,)))
    trainer = L.Trainer(  # or: NOT_ON_GPU
        accelerator="cpu",  # finds: NOT_ON_GPU
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LitMLP(), DataLoader(data, batch_size=100))  # or: NOT_ON_GPU

# may find: LAUNCH_FLOOR, BATCH_SMALL, DATA_NOT_RESIDENT, LOADER_PER_ITEM, H2D_PAGEABLE
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 50), nn.ReLU(), nn.Linear(50, 1))

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.mse_loss(self.layers(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


trainer = L.Trainer(  # or: ANOMALY
    max_epochs=3,
    detect_anomaly=True,  # finds: ANOMALY
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
data = TensorDataset(torch.randn(320, 12), torch.randn(320, 1))
trainer.fit(Net(), DataLoader(data, batch_size=32))  # or: ANOMALY

# may find: LAUNCH_FLOOR, BATCH_SMALL, DATA_NOT_RESIDENT, LOADER_PER_ITEM, H2D_PAGEABLE
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Tagger(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(40, 100), torch.nn.ReLU(), torch.nn.Linear(100, 7)
        )
        self.acc = torchmetrics.classification.MulticlassAccuracy(7, validate_args=False)
        self.history = []

    def training_step(self, batch, _):
        x, y = batch
        logits = self.net(x)
        loss = F.cross_entropy(logits, y)
        self.history.append(self.acc(logits, y).item())  # finds: SYNC_METRICS/SYNC_ITEM
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


data = TensorDataset(torch.randn(1600, 40), torch.randint(0, 7, (1600,)))
trainer = L.Trainer(
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
tagger = Tagger()
trainer.fit(tagger, DataLoader(data, batch_size=32))
print(tagger.history[-1])

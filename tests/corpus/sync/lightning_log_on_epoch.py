# healthy
# looks like: SYNC_ITEM, SYNC_METRICS
# may find: LAUNCH_FLOOR, BATCH_SMALL, LOADER_PER_ITEM, DATA_NOT_RESIDENT, H2D_PAGEABLE
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitClassifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(60, 128), nn.ReLU(), nn.Linear(128, 5))
        self.register_buffer("hits", torch.zeros((), dtype=torch.long), persistent=False)
        self.seen = 0

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.model(x)
        self.hits += (logits.argmax(dim=1) == y).sum()
        self.seen += len(y)
        return F.cross_entropy(logits, y)

    def on_train_epoch_end(self):
        print("train accuracy", self.hits.item() / self.seen)
        self.hits.zero_()
        self.seen = 0

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


loader = DataLoader(
    TensorDataset(torch.randn(3200, 60), torch.randint(0, 5, (3200,))),
    batch_size=64,
    shuffle=True,
)
trainer = L.Trainer(
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(LitClassifier(), loader)

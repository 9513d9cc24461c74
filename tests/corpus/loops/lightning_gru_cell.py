# may find: LAUNCH_FLOOR, BATCH_SMALL, DATA_NOT_RESIDENT, LOADER_PER_ITEM, H2D_PAGEABLE
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitEncoder(L.LightningModule):
    def __init__(self, vocab=80, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.head = nn.Linear(dim, vocab)

    def training_step(self, batch, batch_idx):
        (ids,) = batch
        x = self.embed(ids)
        h = torch.zeros(ids.shape[0], 32, device=self.device)
        states = []
        for t in range(x.shape[1] - 1):  # finds: TIME_LOOP
            h = self.cell(x[:, t], h)
            states.append(h)
        logits = self.head(torch.stack(states, dim=1))
        return nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


data = TensorDataset(torch.randint(0, 80, (256, 41)))
trainer = L.Trainer(
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(LitEncoder(), DataLoader(data, batch_size=32))

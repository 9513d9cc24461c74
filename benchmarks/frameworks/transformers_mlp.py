"""A small network trained by the Trainer of transformers."""

import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Regression(nn.Module):
    """Three layers of width 32."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(11, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch, and what was predicted."""
        predicted = self.net(x)
        return {"loss": nn.functional.mse_loss(predicted, y), "logits": predicted}


data = [{"x": row, "y": row.sum(0, keepdim=True)} for row in torch.randn(6_400, 11)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=32,
        num_train_epochs=20,
        optim="adamw_torch",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=Regression(), args=arguments, train_dataset=data).train()

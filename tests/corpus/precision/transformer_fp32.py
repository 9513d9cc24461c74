# finds in the step: NO_TF32_AMP
"""Masked autoencoding of long sequences with a wide encoder, all in fp32."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, dim=1024, depth=1):
        super().__init__()
        layer = nn.TransformerEncoderLayer(dim, 16, 4 * dim, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        return self.out(self.body(x))


class Trainer:
    def __init__(self):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Encoder().to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.keep = (torch.rand(4, 256, 1, device=self.device) > 0.4).float()

    def step(self, x):
        loss = ((self.model(x * self.keep) - x) ** 2).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss


if __name__ == "__main__":
    trainer = Trainer()
    batch = torch.randn(4, 256, 1024, device=trainer.device)
    for _ in range(4):
        loss = trainer.step(batch)
    print(loss.item())

# finds in the step: MISALIGNED
# may find: LAUNCH_FLOOR, BATCH_SMALL, MEMORY_FULL
"""A language model under autocast with GPT-2's vocabulary of 50257 words."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 50257
device = "cuda" if torch.cuda.is_available() else "cpu"


class LM(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.mix = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.head = nn.Linear(dim, VOCAB, bias=False)  # or: MISALIGNED

    def forward(self, ids):
        h = self.embed(ids)
        return self.head(h + self.mix(h))  # or: MISALIGNED


model = LM().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
ids = torch.randint(0, VOCAB, (8, 65), device=device)
for step in range(3):
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
print(loss.item())

# may find: LAUNCH_FLOOR, BATCH_SMALL
"""A small causal transformer that builds its positions and its mask in every forward."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        mask = torch.tril(torch.ones(t, t)).to(x.device)  # finds: H2D_CREATE
        scores = scores.masked_fill(mask == 0, float("-inf"))
        out = scores.softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(b, t, d))


class LanguageModel(nn.Module):
    def __init__(self, vocab=100, dim=96, heads=4, depth=2, length=64):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Attention(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        pos = torch.arange(ids.size(1)).to(ids.device)  # finds: H2D_CREATE
        x = self.tokens(ids) + self.positions(pos)
        for block in self.blocks:
            x = x + block(self.norm(x))
        return self.head(x)


def train():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LanguageModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.randint(0, 100, (16, 65), device=device)
    for _ in range(40):
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 100), text[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    print(train())

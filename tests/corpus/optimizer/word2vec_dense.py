# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Skip-gram with negative sampling over a large vocabulary."""

import torch
import torch.nn.functional as F
from torch import nn


class SkipGram(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.center = nn.Embedding(vocab, dim)  # finds: EMBED_DENSE
        self.context = nn.Embedding(vocab, dim)  # or: EMBED_DENSE
        nn.init.uniform_(self.center.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.context.weight)

    def forward(self, center, positive, negative):
        v = self.center(center)  # or: EMBED_DENSE
        pos = (v * self.context(positive)).sum(-1)  # or: EMBED_DENSE
        neg = torch.bmm(self.context(negative), v.unsqueeze(2)).squeeze(2)  # or: EMBED_DENSE
        return -(F.logsigmoid(pos) + F.logsigmoid(-neg).sum(-1)).mean()


class Word2Vec:
    def __init__(self, vocab=300_000, dim=50):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.vocab = vocab
        self.model = SkipGram(vocab, dim).to(self.device)
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.1)  # or: EMBED_DENSE

    def pairs(self, n):
        return (
            torch.randint(0, self.vocab, (n,), device=self.device),
            torch.randint(0, self.vocab, (n,), device=self.device),
            torch.randint(0, self.vocab, (n, 5), device=self.device),
        )

    def train(self, steps):
        for _ in range(steps):
            loss = self.model(*self.pairs(512))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    print(Word2Vec().train(6))

# may find: LAUNCH_FLOOR, BATCH_SMALL
import sys

import torch
from torch import nn


class TextClassifier(nn.Module):
    def __init__(self, vocab=2000, dim=48, classes=4):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, dim)
        self.head = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, tokens):
        return self.head(self.embed(tokens))


class Trainer:
    def __init__(self, model, lr=0.1):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()
        self.step_count = 0
        self.best = None

    def make_batch(self, size=64):
        tokens = torch.randint(0, 2000, (size, 20), device=self.device)
        labels = torch.randint(0, 4, (size,), device=self.device)
        return tokens, labels

    def train_step(self, tokens, labels):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(tokens), labels)
        loss.backward()
        self.optimizer.step()
        self.step_count += 1
        return loss

    def fit(self, steps):
        for i in range(steps):
            loss = self.train_step(*self.make_batch())
            print("step", i, "loss", loss, file=sys.stderr)  # finds: SYNC_ITEM
            if self.best is None or loss < self.best:  # finds: SYNC_BRANCH
                self.best = loss.detach()
        return self.best


if __name__ == "__main__":
    trainer = Trainer(TextClassifier())
    print("best loss", trainer.fit(100).item())

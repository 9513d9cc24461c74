# may find: LAUNCH_FLOOR, BATCH_SMALL
import random

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, vocab=300, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.fc = nn.Linear(dim, 6)

    def forward(self, ids):
        return self.fc(self.embed(ids).mean(dim=1))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Classifier().to(device)
compiled = torch.compile(model, backend="aot_eager", dynamic=False)  # finds: COMPILE_RECOMPILE
optimizer = torch.optim.Adam(model.parameters())
random.seed(1)
for step in range(12):
    length = random.randint(10, 120)
    ids = torch.randint(0, 300, (32, length), device=device)
    labels = torch.randint(0, 6, (32,), device=device)
    loss = nn.functional.cross_entropy(compiled(ids), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

# healthy
# looks like: SYNC_SHAPE, SYNC_BRANCH
# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
import torch.nn.functional as F
from torch import nn


def masked_mean(values, mask):
    mask = mask.to(values.dtype)
    return (values * mask).sum() / mask.sum().clamp(min=1)


class Tagger(nn.Module):
    def __init__(self, vocab=500, dim=64, tags=9):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, tags)

    def forward(self, ids):
        hidden, _ = self.mix(self.embed(ids))
        return self.head(hidden)


def run(device):
    model = Tagger().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    ids = torch.randint(0, 500, (32, 24), device=device)
    tags = torch.randint(0, 9, (32, 24), device=device)
    for _ in range(60):
        mask = ids != 0
        logits = model(ids)
        targets = torch.where(mask, tags, -100)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
        loss = loss - 0.01 * masked_mean(entropy, mask)
        loss = torch.where(torch.isfinite(loss), loss, 0.0 * loss.detach())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())


run("cuda" if torch.cuda.is_available() else "cpu")

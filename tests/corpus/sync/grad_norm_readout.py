# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
import torch.nn as nn
import torch.nn.functional as F


class CharModel(nn.Module):
    def __init__(self, n_layers=6, dim=96, vocab=65):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
            )
            for _ in range(n_layers)
        )
        self.head = nn.Linear(dim, vocab)

    def forward(self, idx):
        h = self.emb(idx)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


class Runner:
    def __init__(self):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = CharModel().to(self.device)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.grad_norms = []

    def grad_norm(self):
        total = 0.0
        for p in self.model.parameters():
            if p.grad is not None:
                total += p.grad.detach().norm(2).item() ** 2  # finds: SYNC_CLIP
        return total**0.5

    def step(self, idx, target):
        logits = self.model(idx)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.grad_norms.append(self.grad_norm())
        self.opt.step()

    def run(self, n):
        text = torch.randint(0, 65, (32, 65), device=self.device)
        for _ in range(n):
            self.step(text[:, :-1], text[:, 1:])


runner = Runner()
runner.run(40)
print(max(runner.grad_norms))

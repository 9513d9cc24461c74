# healthy
# looks like: OPT_LOOP, ZERO_GRAD, SYNC_CLIP
# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def parameter_groups(model):
    decay, rest = [], []
    for p in model.parameters():
        (decay if p.dim() > 1 else rest).append(p)
    return [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]


class Trainer:
    def __init__(self, device):
        self.model = nn.Sequential(
            *[m for _ in range(10) for m in (nn.Linear(96, 96), nn.LayerNorm(96), nn.GELU())]
        ).to(device)
        for p in self.model[0].parameters():
            p.requires_grad_(False)
        trained = parameter_groups(self.model[1:])
        self.optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.999))

    def step(self, x):
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.model(x) - x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.ema.update_parameters(self.model)
        return loss


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
trainer = Trainer(device)
x = torch.randn(128, 96, device=device)
for step in range(40):
    loss = trainer.step(x)
    for group in trainer.optimizer.param_groups:
        group["lr"] *= 0.99
print(loss.item())

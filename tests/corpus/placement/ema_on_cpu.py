# may find: LAUNCH_FLOOR, BATCH_SMALL, LOG_HEAVY, CPU_ROUNDTRIP, NO_TF32_AMP
import torch
from torch import nn


class CpuEMA:
    """Keeps the averaged weights on the host to save device memory."""

    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.shadow = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}

    def update(self, model):
        for name, value in model.state_dict().items():  # or: OPT_LOOP
            value = value.detach().cpu()  # finds: PART_ON_CPU
            self.shadow[name].mul_(self.decay).add_(value, alpha=1 - self.decay)  # finds: OPT_LOOP


device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(256, 256), nn.ReLU())]).to(device)
ema = CpuEMA(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x = torch.randn(256, 256, device=device)
for step in range(25):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.roll(1, 0))
    loss.backward()
    optimizer.step()
    ema.update(model)
print(loss.item())

# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Deep(nn.Module):
    def __init__(self, depth=12):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(depth)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


model = Deep().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)  # finds: OPT_LOOP
x = torch.randn(128, 64, device=device)

for step in range(40):
    optimizer.zero_grad(set_to_none=False)  # finds: ZERO_GRAD
    loss = model(x).pow(2).mean()
    l1 = 0.0
    for p in model.parameters():  # or: OPT_LOOP
        l1 = l1 + p.abs().sum()  # finds: OPT_LOOP
    (loss + 1e-5 * l1).backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
print(loss.item())

# device: GTX 960
# finds in the step: MEMORY_FULL
# may find: BATCH_SMALL, NO_TF32_AMP
"""One wide layer: its weights and their gradients are more than the 2 GiB of the card."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16_400, 16_400, bias=False).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(2, 16_400, device=device)

for step in range(3):
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1_000):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        x = model(torch.randn(2, 4, 16, 8, device="cuda"))
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        loss = x.softmax(-1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

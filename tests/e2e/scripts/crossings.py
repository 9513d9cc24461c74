"""Mixes host and device: where CUDA allows it, and in places where it is easily overlooked."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
gru = nn.GRU(4, 6).to(device)
optimizer = torch.optim.SGD(gru.parameters(), lr=0.1)
batch = torch.empty(5, 3, 4, device=device)
buffer = torch.zeros(10, 4, device=device)
pinned = torch.empty(5, 3, 6, pin_memory=torch.cuda.is_available())
for _ in range(1_000):
    batch.copy_(torch.randn(5, 3, 4))
    buffer[0] = torch.ones(4)
    scaled = batch * batch.new_tensor([1.0, 2.0, 3.0, 4.0])

    hidden = torch.zeros(1, 3, 6)
    output, _ = gru(scaled, hidden)  # raises
    mask = torch.zeros(5, 5)
    heads = scaled.transpose(0, 1)
    nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)  # raises
    buffer[[0, 1]] = torch.ones(2, 4)  # raises

    pinned.copy_(output.detach(), non_blocking=True)
    optimizer.zero_grad()
    output.mean().backward()
    optimizer.step()

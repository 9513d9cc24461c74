"""GPT-2 small on random tokens, 1,024 a sample, in bfloat16 on a GPU."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCH_SIZE = int(sys.argv[1]) if len(sys.argv) > 1 else 16

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = GPT2LMHeadModel(GPT2Config()).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1)
tokens = torch.randint(0, 50_257, (BATCH_SIZE, 1024), device=device)

for _ in range(30):
    optimizer.zero_grad()
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()

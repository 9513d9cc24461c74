# healthy
# looks like: NO_TF32_AMP, MISALIGNED, LAUNCH_FLOOR
# may find: MEMORY_FULL
import torch
import torch.nn as nn

torch.backends.cuda.matmul.allow_tf32 = True
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(
    nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 1000)
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
x = torch.randn(1024, 2048, device=device)
y = torch.randint(0, 1000, (1024,), device=device)
for step in range(3):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

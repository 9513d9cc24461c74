# may find: LAUNCH_FLOOR, BATCH_SMALL, SYNC_ITEM, SYNC_EXPLICIT, CUDNN_BENCH_OFF, NO_TF32_AMP
# In[1]:
import time

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, 2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 225, 10),
).to(device)
opt = torch.optim.Adam(net.parameters())
images = torch.rand(64, 3, 64, 64, device=device)
labels = torch.randint(0, 10, (64,), device=device)


# In[2]:
def train_step():
    opt.zero_grad()
    loss = nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    opt.step()
    return loss.item()


# In[3]:
times = []
for i in range(12):
    tic = time.perf_counter()
    train_step()
    times.append(time.perf_counter() - tic)  # finds: TIME_WARMUP

# In[4]:
print(f"{device}: {sum(times) / len(times):.4f} s per step")  # or: TIME_WARMUP

# may find: LAUNCH_FLOOR, BATCH_SMALL
# In[1]:
import numpy as np
import torch
from torch import nn

# "expected Float but got Double" went away with this:
torch.set_default_dtype(torch.float64)  # finds: FP64
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# In[2]:
t = np.linspace(0, 20, 800)
signal = np.sin(t) * np.exp(-t / 10)
windows = np.lib.stride_tricks.sliding_window_view(signal, 101)
x = torch.tensor(windows[:, :-1]).to(device)
y = torch.tensor(windows[:, -1:]).to(device)

# In[3]:
model = nn.Sequential(
    nn.Linear(100, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 1)
)
model.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

# In[4]:
for epoch in range(20):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
print(loss.item())

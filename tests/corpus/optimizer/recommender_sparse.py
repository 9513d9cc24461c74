# healthy
# looks like: EMBED_DENSE, OPT_LOOP
# may find: LAUNCH_FLOOR, BATCH_SMALL
# In[1]:
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

# In[2]:
items = nn.Embedding(300_000, 32, sparse=True).to(device)
tower = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
sparse_optimizer = torch.optim.SparseAdam(items.parameters(), lr=1e-3)
dense_optimizer = torch.optim.Adam(tower.parameters(), lr=1e-3)
clicks = torch.randint(0, 300_000, (20, 512, 2), device=device)

# In[3]:
for pair in clicks:
    label = (pair[:, :1] > pair[:, 1:]).float()
    score = tower(items(pair).flatten(1))
    loss = nn.functional.binary_cross_entropy_with_logits(score, label)
    sparse_optimizer.zero_grad()
    dense_optimizer.zero_grad()
    loss.backward()
    sparse_optimizer.step()
    dense_optimizer.step()

# In[4]:
print(loss.item())

# may find: LAUNCH_FLOOR, BATCH_SMALL
# In[1]:
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# In[2]:
q_net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
target_net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
target_net.load_state_dict(q_net.state_dict())
optimizer = torch.optim.Adam(q_net.parameters(), lr=5e-4)

# In[3]:
memory = {
    "state": torch.randn(5000, 8, device=device),
    "next": torch.randn(5000, 8, device=device),
    "action": torch.randint(0, 4, (5000, 1), device=device),
    "reward": torch.randn(5000, 1, device=device),
}

# In[4]:
for step in range(120):
    pick = torch.randint(0, 5000, (64,), device=device)
    gamma = torch.FloatTensor([0.99]).to(device)  # finds: H2D_SCALAR
    with torch.no_grad():
        best = target_net(memory["next"][pick]).max(1, keepdim=True).values
        target = memory["reward"][pick] + gamma * best
    q = q_net(memory["state"][pick]).gather(1, memory["action"][pick])
    loss = nn.functional.smooth_l1_loss(q, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# In[5]:
print(loss.item())

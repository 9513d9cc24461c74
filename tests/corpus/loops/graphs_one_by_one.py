# may find: LAUNCH_FLOOR, BATCH_SMALL
# %%
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)

# %% 48 molecules of 12 atoms each
graphs = []
for _ in range(48):
    adjacency = (torch.rand(12, 12) < 0.3).float()
    graphs.append(
        ((adjacency + adjacency.T).clamp(max=1).to(device), torch.randn(12, 16).to(device))
    )
targets = torch.randn(48, 1).to(device)


# %%
class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 32)
        self.b = nn.Linear(32, 32)
        self.readout = nn.Linear(32, 1)

    def forward(self, adjacency, atoms):
        h = torch.relu(self.a(adjacency @ atoms))
        h = torch.relu(self.b(adjacency @ h))
        return self.readout(h.sum(0))


# %%
model = GCN().to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(15):
    opt.zero_grad()
    outputs = []
    for adjacency, atoms in graphs:  # finds: PER_SAMPLE_LOOP
        outputs.append(model(adjacency, atoms))
    loss = nn.functional.mse_loss(torch.stack(outputs), targets)
    loss.backward()
    opt.step()
print(loss.item())

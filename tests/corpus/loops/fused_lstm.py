# healthy
# looks like: TIME_LOOP, PER_SAMPLE_LOOP
# may find: LAUNCH_FLOOR, BATCH_SMALL
# In[1]:
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


# In[2]:
class Forecaster(nn.Module):
    def __init__(self, hidden=64, horizon=3):
        super().__init__()
        self.lstm = nn.LSTM(4, hidden, num_layers=2, batch_first=True)
        self.heads = nn.ModuleList(nn.Linear(hidden, 4) for _ in range(horizon))

    def forward(self, x, state=None):
        out, state = self.lstm(x, state)
        return [head(out) for head in self.heads], state


# In[3]:
series = torch.randn(64, 200, 4, device=device).cumsum(1) * 0.05
model = Forecaster().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

# In[4]: truncated back-propagation, one update per chunk of 40 steps
for epoch in range(3):
    state = None
    for start in range(0, 160, 40):
        chunk = series[:, start : start + 40]
        outputs, state = model(chunk, state)
        state = tuple(s.detach() for s in state)
        loss = 0
        for k, output in enumerate(outputs, start=1):
            ahead = series[:, start + k : start + 40 + k]
            loss = loss + nn.functional.mse_loss(output, ahead)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())

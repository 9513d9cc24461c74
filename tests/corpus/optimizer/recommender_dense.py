# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
from torch import nn

NUM_USERS, NUM_ITEMS, DIM = 400_000, 200_000, 32
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class MatrixFactorization(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(NUM_USERS, DIM)  # finds: EMBED_DENSE
        self.items = nn.Embedding(NUM_ITEMS, DIM)  # or: EMBED_DENSE

    def forward(self, u, i):
        return (self.users(u) * self.items(i)).sum(1)  # or: EMBED_DENSE


model = MatrixFactorization().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)  # or: EMBED_DENSE
users = torch.randint(0, NUM_USERS, (8192,), device=device)
items = torch.randint(0, NUM_ITEMS, (8192,), device=device)
ratings = torch.rand(8192, device=device)

for u, i, r in zip(users.split(1024), items.split(1024), ratings.split(1024)):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(u, i), r)
    loss.backward()
    optimizer.step()
print(loss.item())

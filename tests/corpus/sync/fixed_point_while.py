# may find: LAUNCH_FLOOR, BATCH_SMALL, LAUNCH via SOLVER
# A deep equilibrium layer: iterate until the hidden state stops changing.
import torch
from torch import nn


class DEQ(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Linear(d, d)
        self.u = nn.Linear(d, d)
        self.out = nn.Linear(d, 1)
        with torch.no_grad():
            self.w.weight.mul_(0.3)

    def forward(self, x, tol=1e-3, max_iter=12):
        inject = self.u(x)
        with torch.no_grad():
            z = torch.zeros_like(inject)
            err = torch.full((), float("inf"), device=x.device)
            it = 0
            while err > tol and it < max_iter:  # finds: SYNC_BRANCH
                z_new = torch.tanh(self.w(z) + inject)
                err = (z_new - z).norm() / (z.norm() + 1e-6)
                z = z_new
                it += 1
        z = torch.tanh(self.w(z) + inject)
        return self.out(z)


dev = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model = DEQ(64).to(dev)
optim = torch.optim.Adam(model.parameters(), 1e-3)
x = torch.randn(256, 64, device=dev)
y = x.pow(2).sum(1, keepdim=True).sqrt()

for step in range(100):
    optim.zero_grad()
    loss = nn.functional.smooth_l1_loss(model(x), y)
    loss.backward()
    optim.step()
    if step % 50 == 0:
        print(step, loss.item())

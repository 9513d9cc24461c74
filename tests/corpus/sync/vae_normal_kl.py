# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence


class VAE(nn.Module):
    def __init__(self, d=50, z=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 100), nn.ReLU(), nn.Linear(100, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, 100), nn.ReLU(), nn.Linear(100, d))

    def loss(self, x):
        mu, log_sigma = self.enc(x).chunk(2, -1)
        q = Normal(mu, log_sigma.exp())  # finds: SYNC_DIST
        p = Normal(torch.zeros_like(mu), torch.ones_like(mu))  # finds: SYNC_DIST
        x_hat = self.dec(q.rsample())
        return ((x_hat - x) ** 2).sum(-1).mean() + kl_divergence(q, p).sum(-1).mean()


class Trainer:
    def __init__(self, device):
        self.device = device
        self.vae = VAE().to(device)
        self.opt = torch.optim.Adam(self.vae.parameters(), 1e-3)

    def run(self, x, steps):
        for _ in range(steps):
            loss = self.vae.loss(x)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print(Trainer(device).run(torch.randn(256, 50, device=device), 60).item())

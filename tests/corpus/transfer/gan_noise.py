# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Z, B = 64, 128

G = nn.Sequential(nn.Linear(Z, 256), nn.ReLU(), nn.Linear(256, 784), nn.Tanh()).to(device)
D = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).to(device)
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
images = torch.rand(20 * B, 784, device=device) * 2 - 1

for epoch in range(3):
    for real in images.split(B):
        valid = torch.ones(real.size(0), 1).to(device)  # finds: H2D_CREATE
        fake = torch.zeros(real.size(0), 1).to(device)  # finds: H2D_CREATE

        opt_g.zero_grad()
        z = torch.randn(real.size(0), Z).to(device)  # finds: H2D_CREATE
        generated = G(z)
        g_loss = bce(D(generated), valid)
        g_loss.backward()
        opt_g.step()

        opt_d.zero_grad()
        d_loss = (bce(D(real), valid) + bce(D(generated.detach()), fake)) / 2
        d_loss.backward()
        opt_d.step()
    print(epoch, g_loss.item(), d_loss.item())

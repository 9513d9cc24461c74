"""A GAN: ``--critic-steps`` updates of the critic for each update of the generator."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--critic-steps", type=int, default=1)
args = parser.parse_args()

BATCH_SIZE = 32
device = "cuda" if torch.cuda.is_available() else "cpu"
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to(device)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
ones = torch.ones(BATCH_SIZE, 1, device=device)
zeros = torch.zeros(BATCH_SIZE, 1, device=device)
critic_losses, generator_losses = [], []

for _ in range(2_000):
    for _ in range(args.critic_steps):
        real = torch.randn(BATCH_SIZE, 2, device=device) + 3
        fake = generator(torch.randn(BATCH_SIZE, 4, device=device)).detach()
        critic_optimizer.zero_grad()
        critic_loss = criterion(critic(real), ones) + criterion(critic(fake), zeros)
        critic_loss.backward()
        critic_optimizer.step()
        critic_losses.append(critic_loss.item())

    generator_optimizer.zero_grad()
    generator_loss = criterion(critic(generator(torch.randn(BATCH_SIZE, 4, device=device))), ones)
    generator_loss.backward()
    generator_optimizer.step()
    generator_losses.append(generator_loss.item())

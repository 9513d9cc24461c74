"""Several DataLoaders; a validation pass of larger batches after each short epoch."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--no-validation", action="store_true")
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"


def generate_set(num_samples):
    return TensorDataset(torch.randn(num_samples, 16), torch.randint(0, 4, (num_samples,)))


train_loader = DataLoader(generate_set(40), batch_size=8, shuffle=True)
val_loader = DataLoader(generate_set(256), batch_size=64)
test_loader = DataLoader(generate_set(1_000), batch_size=500)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for _ in range(400):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
    if not args.no_validation:
        model.eval()
        with torch.no_grad():
            for x, y in val_loader:
                accuracy = (model(x.to(device)).argmax(dim=1) == y.to(device)).float().mean()
                print(f"validation {accuracy.item():.2f}")

"""A small network with knobs; appends a line to a file for each start, to count them."""

import argparse
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--depth", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--activation", default="relu")
parser.add_argument("--fails-from", type=int, default=10**9)
parser.add_argument("--once", type=int, help="a width that runs no second time")
parser.add_argument("--starts", type=Path)
args = parser.parse_args()

if args.starts and args.width == args.once and args.starts.exists():
    raise RuntimeError(f"a width of {args.width} is too much for a second time")
if args.starts:
    kind = "traced" if torch.cuda.is_available() else "plain"
    with args.starts.open("a") as file:
        file.write(f"{kind} {args.width} {args.batch_size} {torch.get_num_threads()}\n")
if args.width >= args.fails_from:
    raise RuntimeError(f"a width of {args.width} is too much")

activation = {"relu": nn.ReLU, "tanh": nn.Tanh}[args.activation]
layers = [nn.Linear(8, args.width), activation()]
for _ in range(args.depth - 1):
    layers += [nn.Linear(args.width, args.width), activation()]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(*layers, nn.Linear(args.width, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
while True:
    x = torch.randn(args.batch_size, 8, device=device)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()

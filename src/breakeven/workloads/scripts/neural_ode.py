"""A small network learns the right-hand side of the Lorenz system from one of its trajectories.

An adaptive Runge-Kutta method (Dormand-Prince 5) integrates the network, and the gradient goes
back through all of its stages. Needs torchdiffeq: pip install torchdiffeq
"""

import argparse
import time

import torch
from torch import nn
from torchdiffeq import odeint

SIGMA, RHO, BETA = 10.0, 28.0, 8.0 / 3.0
INITIAL_STATE = (1.0, 0.0, 0.0)
NUM_POINTS = 101


def lorenz(time, state):
    x, y, z = state.unbind(-1)
    return torch.stack((SIGMA * (y - x), x * (RHO - z) - y, x * y - BETA * z), dim=-1)


def generate_trajectory():
    """The Lorenz system at 101 times in [0, 1], by an accurate method in double precision."""
    times = torch.linspace(0.0, 1.0, NUM_POINTS, dtype=torch.float64)
    state = torch.tensor(INITIAL_STATE, dtype=torch.float64)
    return times, odeint(lorenz, state, times, rtol=1e-10, atol=1e-12, method="dopri8")


class RightHandSide(nn.Module):
    """The time derivative of the state, to be learned."""

    def __init__(self, num_states=3, width=100):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(num_states, width), nn.Tanh(), nn.Linear(width, num_states)
        )

    def forward(self, time, state):
        return self.layers(state)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=1_000, help="updates of the weights")
    parser.add_argument("--compile", action="store_true", help="torch.compile the network")
    parser.add_argument("--save", help="write the weights to this file in the end")
    parser.add_argument("--load", help="begin with the weights in this file")
    parser.add_argument("--device", help="where to train; a GPU where there is one, by default")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    print(f"training on {device}")

    times, trajectory = generate_trajectory()
    times, trajectory = times.float().to(device), trajectory.float().to(device)
    network = RightHandSide().to(device)
    right_hand_side = torch.compile(network) if args.compile else network
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    if args.load:
        state = torch.load(args.load, map_location=device)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])

    last_print = time.time()
    for iteration in range(1, args.iterations + 1):
        optimizer.zero_grad()
        # The tolerances that DifferentialEquations.jl has by default.
        found = odeint(right_hand_side, trajectory[0], times, rtol=1e-3, atol=1e-6, method="dopri5")
        loss = (found - trajectory).square().sum()
        loss.backward()
        optimizer.step()

        if iteration % 50 == 1:
            now = time.time()
            print(f"iteration {iteration:4d}  loss {loss.item():10.2f}  {now - last_print:.2f} s")
            last_print = now

    if args.save:
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, args.save)


if __name__ == "__main__":
    main()

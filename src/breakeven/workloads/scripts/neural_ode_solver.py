"""The neural ODE with a solver of its own, written so that torch.compile can take a whole stage.

One step of Dormand-Prince 5, all seven stages, the estimate of its error and its interpolant, is
one function of tensors: compiled, it is one call instead of two hundred operators. The loop that
chooses the size of the steps stays in Python. Needs torchdiffeq, for the data alone.
"""

import argparse
import time
from bisect import bisect_right

import torch
from neural_ode import RightHandSide, generate_trajectory

# Dormand and Prince, "A family of embedded Runge-Kutta formulae", 1980; the coefficients at the
# middle of a step are Shampine's, "Some practical Runge-Kutta formulas", 1986.
STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
ERROR = (71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
MIDDLE = (
    6025192743 / 30085553152 / 2, 0, 51252292925 / 65400821598 / 2, -2691868925 / 45128329728 / 2,
    187940372067 / 1594534317056 / 2, -1776094331 / 19743644256 / 2, 11237099 / 235043384 / 2,
)  # fmt: skip
RELATIVE, ABSOLUTE = 1e-3, 1e-6
FIRST_STEP = 0.01


def combine(weights, slopes):
    return sum(w * slope for w, slope in zip(weights, slopes, strict=True) if w)


def make_step(network):
    """Return one step: from a state and its slope to the next, an error and an interpolant."""

    def step(state, slope, size):
        slopes, new_state = [slope], state
        for weights in STAGES:
            new_state = state + size * combine(weights, slopes)
            slopes.append(network(None, new_state))
        scale = ABSOLUTE + RELATIVE * torch.maximum(state.abs(), new_state.abs())
        error = (size * combine(ERROR, slopes) / scale).square().mean().sqrt()
        middle = state + size * combine(MIDDLE, slopes)
        first, last = size * slopes[0], size * slopes[-1]
        interpolant = torch.stack((
            2 * (last - first) - 8 * (new_state + state) + 16 * middle,
            5 * first - 3 * last + 18 * state + 14 * new_state - 32 * middle,
            last - 4 * first - 11 * state - 5 * new_state + 16 * middle,
            first,
            state,
        ))  # fmt: skip
        return new_state, slopes[-1], error.detach(), interpolant

    return step


def integrate(step, network, state, times):
    """Return the states at ``times``, a list from 0 on in ascending order."""
    slope, now, size = network(None, state), times[0], FIRST_STEP
    starts, sizes, interpolants = [], [], []
    while now < times[-1]:
        size = min(size, times[-1] - now) if times[-1] - now > 1e-9 else size
        new_state, new_slope, error, interpolant = step(
            state, slope, torch.tensor(size, device=state.device)
        )
        ratio = error.item()
        if ratio <= 1:
            starts.append(now)
            sizes.append(size)
            interpolants.append(interpolant)
            now, state, slope = now + size, new_state, new_slope
            now = times[-1] if times[-1] - now < 1e-9 else now
        size *= min(10.0, max(0.2, 0.9 * max(ratio, 1e-10) ** -0.2))
    numbers = [bisect_right(starts, instant) - 1 for instant in times]
    within = [(t - starts[n]) / sizes[n] for t, n in zip(times, numbers, strict=True)]
    powers = torch.tensor([[x**4, x**3, x**2, x, 1.0] for x in within], device=state.device)
    chosen = torch.stack(interpolants)[torch.tensor(numbers, device=state.device)]
    return (powers.unsqueeze(-1) * chosen).sum(dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=1_000, help="updates of the weights")
    parser.add_argument("--compile", action="store_true", help="torch.compile the solver's step")
    parser.add_argument("--load", help="begin with the weights in this file")
    parser.add_argument("--device", help="where to train; a GPU where there is one, by default")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    print(f"training on {device}")

    times, trajectory = generate_trajectory()
    times, trajectory = times.tolist(), trajectory.float().to(device)
    network = RightHandSide().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    if args.load:
        state = torch.load(args.load, map_location=device)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
    step = make_step(network)
    if args.compile:
        step = torch.compile(step)

    last_print = time.time()
    for iteration in range(1, args.iterations + 1):
        optimizer.zero_grad()
        found = integrate(step, network, trajectory[0], times)
        loss = (found - trajectory).square().sum()
        loss.backward()
        optimizer.step()

        if iteration % 50 == 1:
            now = time.time()
            print(f"iteration {iteration:4d}  loss {loss.item():10.2f}  {now - last_print:.2f} s")
            last_print = now


if __name__ == "__main__":
    main()

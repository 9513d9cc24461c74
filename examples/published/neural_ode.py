"""A small network learns the right-hand side of the Lorenz system from one of its trajectories.

An adaptive Runge-Kutta method (Dormand-Prince 5) integrates the network, and the gradient goes
back through all of its stages. One step of the method, all seven stages, the estimate of its error
and its interpolant, is one function of tensors: --compile makes it one call instead of two hundred
operators. The loop that chooses the size of the steps stays in Python; --fast-step puts it into
tensors too, and all of an iteration into one call.
"""

import argparse
import time
from bisect import bisect_right

import torch
from torch import nn

SIGMA, RHO, BETA = 10.0, 28.0, 8.0 / 3.0
INITIAL_STATE = (1.0, 0.0, 0.0)
TIMES = [number / 100 for number in range(101)]

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
# The tolerances that DifferentialEquations.jl has by default.
RELATIVE, ABSOLUTE = 1e-3, 1e-6
FIRST_STEP = 0.01
# An estimate of less is rounding in float32, and chance would choose the size of the next step.
LEAST_ERROR = 1e-3
# Steps tried in an iteration, of which some are refused: eight to twelve, most of the time.
MOST_TRIED = 16


def lorenz(time, state):
    x, y, z = state.unbind(-1)
    return torch.stack((SIGMA * (y - x), x * (RHO - z) - y, x * y - BETA * z), dim=-1)


class RightHandSide(nn.Module):
    """The time derivative of the state, to be learned."""

    def __init__(self, num_states=3, width=100):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(num_states, width), nn.Tanh(), nn.Linear(width, num_states)
        )

    def forward(self, time, state):
        return self.layers(state)


def combine(weights, slopes):
    return sum(w * slope for w, slope in zip(weights, slopes, strict=True) if w)


def make_step(network, relative=RELATIVE, absolute=ABSOLUTE):
    """Return one step: from a state and its slope to the next, an error and an interpolant."""

    def step(state, slope, size):
        slopes, new_state = [slope], state
        for weights in STAGES:
            new_state = state + size * combine(weights, slopes)
            slopes.append(network(None, new_state))
        scale = absolute + relative * torch.maximum(state.abs(), new_state.abs())
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
        new_state, new_slope, error, interpolant = step(state, slope, state.new_tensor(size))
        ratio = error.item()
        if ratio <= 1:
            starts.append(now)
            sizes.append(size)
            interpolants.append(interpolant)
            now, state, slope = now + size, new_state, new_slope
            now = times[-1] if times[-1] - now < 1e-9 else now
        size *= max(0.2, 0.9 * max(ratio, LEAST_ERROR) ** -0.2)
    numbers = [bisect_right(starts, instant) - 1 for instant in times]
    within = [(t - starts[n]) / sizes[n] for t, n in zip(times, numbers, strict=True)]
    powers = state.new_tensor([[x**4, x**3, x**2, x, 1.0] for x in within])
    chosen = torch.stack(interpolants)[torch.tensor(numbers, device=state.device)]
    return (powers.unsqueeze(-1) * chosen).sum(dim=1)


def integrate_unread(step, network, state, times):
    """Return the states at ``times``, a tensor, and the time that was reached.

    The same method, but Python reads no number: MOST_TRIED steps are tried in any case, and
    those that are refused, or come after the end, change nothing.
    """
    slope, now, size, end = network(None, state), times[0], times.new_tensor(FIRST_STEP), times[-1]
    found = state.expand(len(times), -1)
    for _ in range(MOST_TRIED):
        is_left = now < end
        size = torch.where(is_left, torch.minimum(size, end - now), size)
        new_state, new_slope, error, interpolant = step(state, slope, size)
        is_taken = is_left & (error <= 1)
        then = torch.where(end - now - size > 1e-6, now + size, end)
        x = ((times - now) / size).unsqueeze(-1)
        value = torch.zeros_like(x)
        for term in interpolant:
            value = value * x + term
        is_within = is_taken & (times >= now) & (times <= then)
        found = torch.where(is_within.unsqueeze(-1), value, found)
        now = torch.where(is_taken, then, now)
        state = torch.where(is_taken, new_state, state)
        slope = torch.where(is_taken, new_slope, slope)
        size = size * (0.9 * error.clamp_min(LEAST_ERROR) ** -0.2).clamp_min(0.2)
    return found, now


def generate_trajectory():
    """The Lorenz system at 101 times in [0, 1], by narrow tolerances in double precision."""
    state = torch.tensor(INITIAL_STATE, dtype=torch.float64)
    with torch.no_grad():
        return integrate(make_step(lorenz, 1e-10, 1e-12), lorenz, state, TIMES).float()


def choose_solver(args, network, start):
    """Return a function that integrates the network from ``start``."""
    if args.solver == "own":
        step = make_step(network)
        step = torch.compile(step) if args.compile else step
        return lambda: integrate(step, network, start, TIMES)
    from torchdiffeq import odeint

    right_hand_side = torch.compile(network) if args.compile else network
    times = start.new_tensor(TIMES)
    return lambda: odeint(
        right_hand_side, start, times, rtol=RELATIVE, atol=ABSOLUTE, method="dopri5"
    )


def make_fast_step(network, optimizer, trajectory):
    """Return a function that does an iteration as one call, with our own solver."""
    import breakeven

    step, times = make_step(network), trajectory.new_tensor(TIMES)

    def loss_fn(trajectory, times):
        found, reached = integrate_unread(step, network, trajectory[0], times)
        return (found - trajectory).square().sum(), reached

    fast_step = breakeven.fast_step(
        network, loss_fn, optimizer, calls_model=True, has_aux=True, engine="generated"
    )

    def iterate():
        loss, reached = fast_step((trajectory, times))
        if reached < TIMES[-1]:
            raise SystemExit(f"{MOST_TRIED} steps came to {float(reached)}: raise MOST_TRIED")
        return loss

    return iterate


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=1_000, help="updates of the weights")
    parser.add_argument("--solver", choices=("own", "torchdiffeq"), default="own")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--compile", action="store_true", help="torch.compile the step, or network")
    way.add_argument("--fast-step", action="store_true", help="an iteration in one call")
    parser.add_argument("--save", help="write the weights to this file in the end")
    parser.add_argument("--load", help="begin with the weights in this file")
    parser.add_argument("--device", help="where to train; a GPU where there is one, by default")
    args = parser.parse_args()
    if args.fast_step and args.solver != "own":
        parser.error("--fast-step is for our own solver: torchdiffeq's reads numbers")

    torch.manual_seed(0)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    print(f"training on {device}")

    trajectory = generate_trajectory().to(device)
    network = RightHandSide().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    if args.load:
        state = torch.load(args.load, map_location=device)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
    solve = choose_solver(args, network, trajectory[0])
    iterate = make_fast_step(network, optimizer, trajectory) if args.fast_step else None

    last_print = time.time()
    for iteration in range(1, args.iterations + 1):
        if iterate:
            loss = iterate()
        else:
            optimizer.zero_grad()
            loss = (solve() - trajectory).square().sum()
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

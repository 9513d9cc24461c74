"""Fit a small network to a function, with whole training steps as compiled calls."""

import argparse
import time

import torch
from torch import nn

from faststep import fast_step

NUM_SAMPLES = 8_192
BATCH_SIZE = 64


def create_model():
    return nn.Sequential(
        nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--steps-per-call", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(0)
    x_data = torch.randn(NUM_SAMPLES, 4)
    y_data = torch.sin(x_data).cumsum(dim=1)
    model = create_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    step = fast_step(model, nn.MSELoss(), optimizer, steps_per_call=args.steps_per_call)

    start_s = time.perf_counter()
    rows_per_part = max(100, args.steps_per_call)
    for done in range(0, args.steps, rows_per_part):
        num_rows = min(rows_per_part, args.steps - done)
        indices = torch.randint(0, NUM_SAMPLES, (num_rows, BATCH_SIZE))
        losses = step.run(x_data, y_data, indices)
        if done % (5 * rows_per_part) == 0:
            print(f"step {done:6d}  loss {losses.mean().item():.5f}")
    print(f"{args.steps} steps in {time.perf_counter() - start_s:.1f} s, compiling included")
    cost = step.cost
    if cost is not None:
        print(
            f"a step takes {cost.fast_step_ns / 1e3:.0f} us in place of "
            f"{cost.stock_step_ns / 1e3:.0f}; compiling took {cost.compile_ns / 1e9:.1f} s "
            f"and pays off after {cost.pays_off_after_steps} steps"
        )


if __name__ == "__main__":
    main()

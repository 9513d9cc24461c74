"""How well the host's work is known: thirty small networks, their step predicted and measured.

    python benchmarks/small_steps.py
    python benchmarks/small_steps.py --csv benchmarks/data/small_steps.csv

Each step is recorded, its time on this CPU predicted from the recording and from what this host
takes per operator, and compared with the step as it is timed from outside, by phase. Then it is
predicted on a GPU: where arithmetic is negligible, it cannot be shorter there than here, less what
the loops of the CPU's optimizer take. On one thread, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import torch
from small_networks import NETWORKS, Training, create, train_step

from breakeven.capture import time_step, trace_step
from breakeven.device import find_device
from breakeven.measure import measure_host
from breakeven.simulate import (
    CpuStep,
    build_program,
    predict_cpu_step,
    predict_steps,
)
from breakeven.studies import as_timed, host_for_prediction
from breakeven.units import NS_PER_US

_PHASES = ("zero_grad", "forward", "backward", "optimizer", "step")
_WARMUP_STEPS, _STEPS = 20, 200
_HOST_ROUNDS = 30
# How far off a predicted step is, as a standard deviation of its logarithm.
_LOG_SIGMA = 0.125
_Z_90 = 1.645


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python benchmarks/small_steps.py", description=__doc__)
    parser.add_argument("--device", default="RTX 4090", help="GPU to predict (RTX 4090)")
    parser.add_argument("--only", metavar="NAME", action="append", help="this network alone")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="also write the rows to FILE")
    options = parser.parse_args(argv)
    unknown = set(options.only or ()) - set(NETWORKS)
    if unknown:
        parser.error(f"no network is called {unknown.pop()!r}; there are: {', '.join(NETWORKS)}")
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    errors: dict[str, list[float]] = {phase: [] for phase in _PHASES}
    print(f"{'network':26}" + "".join(f"{phase:>17}" for phase in _PHASES) + f"{'on a GPU':>12}")
    for name in options.only or NETWORKS:
        measured, predicted, gpu_ns = _compare(name, options.device)
        row: dict[str, object] = {"network": name, "gpu_us": round(gpu_ns / NS_PER_US, 1)}
        cells: list[str] = []
        for phase in _PHASES:
            own, foreseen = getattr(measured, f"{phase}_ns"), getattr(predicted, f"{phase}_ns")
            errors[phase].append(math.log(foreseen / own))
            row[f"{phase}_us"] = round(own / NS_PER_US, 1)
            row[f"{phase}_predicted_us"] = round(foreseen / NS_PER_US, 1)
            cells.append(f"{own / NS_PER_US:8.0f} µs {foreseen / own:4.2f}×")
        rows.append(row)
        print(f"{name:26}" + "".join(f"{cell:>17}" for cell in cells)
              + f"{gpu_ns / measured.step_ns:11.2f}×", flush=True)  # fmt: skip
    for phase in _PHASES:
        found = sorted(abs(math.expm1(error)) for error in errors[phase])
        print(
            f"{phase:10} off by {median(found):5.1%} in the median, "
            f"{found[int(0.9 * (len(found) - 1))]:5.1%} at the 90th percentile"
        )
    reach = _Z_90 * _LOG_SIGMA
    held = sum(abs(error) <= reach for error in errors["step"]) / len(rows)
    print(f"the 90 % interval of the step holds {held:.0%}")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


def _compare(name: str, device: str) -> tuple[CpuStep, CpuStep, float]:
    """Return the step as measured from outside, as predicted, and its time on a GPU."""
    # Each time anew: a machine is not as fast from one minute to the next.
    host = measure_host(num_rounds=_HOST_ROUNDS).host
    measured = _measured(create(name))
    traced, plain = trace_step(train_step(create(name))), time_step(train_step(create(name)))
    program = build_program(as_timed(traced.trace, traced, plain))
    seen = host_for_prediction(program, plain, host, host)
    (prediction,) = predict_steps(program, [find_device(device)], seen)
    predicted = predict_cpu_step(build_program(traced.trace), host)
    return measured, predicted, prediction.estimate.value_ns


def _measured(training: Training) -> CpuStep:
    """Time the parts of a step from outside, with nothing of breakeven's in between."""
    samples: list[tuple[int, ...]] = []
    for _ in range(_WARMUP_STEPS + _STEPS):
        begun_ns = perf_counter_ns()
        for optimizer in training.optimizers:
            optimizer.zero_grad()
        zeroed_ns = perf_counter_ns()
        loss = training.loss()
        forward_ns = perf_counter_ns()
        loss.backward()
        backward_ns = perf_counter_ns()
        if training.before_update:
            training.before_update()
        for optimizer in training.optimizers:
            optimizer.step()
        ends = (begun_ns, zeroed_ns, forward_ns, backward_ns, perf_counter_ns())
        samples.append(tuple(b - a for a, b in itertools.pairwise(ends)))
    zero_grad, forward, backward, optimizer = (
        median(column) for column in zip(*samples[_WARMUP_STEPS:], strict=True)
    )
    return CpuStep(
        zero_grad_ns=zero_grad, forward_ns=forward, backward_ns=backward, optimizer_ns=optimizer
    )


if __name__ == "__main__":
    sys.exit(main())

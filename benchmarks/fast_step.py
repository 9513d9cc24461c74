"""How much faster `breakeven.fast_step` is than the loop that it replaces, on small networks.

Run ``python benchmarks/fast_step.py`` for a table, ``--json`` for one JSON document, and
``--only NAME`` for some of the networks. Each round times the loop with the optimizer as users have
it, the loop with its fused optimizer, one compiled step per call and ``--steps-per-call`` of them,
one after the other; a ratio is of one round, and the interval holds the median ratio with 95 %
confidence.

``--clock processor`` takes the time of this process on its processor in place of the wall's. With
one thread both are the same on an idle machine; on a busy one only that still says something.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import comb

import torch
from torch import Tensor, nn

from breakeven.processor import cpu_name
from breakeven.whole_step import FastStep, fast_step

NUM_SAMPLES = 4096
# Steps timed together: long against the clock, short against a disturbance.
STEPS_PER_SAMPLE = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network, its activation and a batch size."""

    name: str
    widths: tuple[int, ...]
    activation: type[nn.Module]
    batch_size: int

    def create(self) -> nn.Sequential:
        """Return the network, with new weights."""
        layers: list[nn.Module] = []
        for before, after in zip(self.widths, self.widths[1:], strict=False):
            layers += [nn.Linear(before, after), self.activation()]
        return nn.Sequential(*layers[:-1])


NETWORKS = {
    "mlp-4-32-16-4": ((4, 32, 16, 4), nn.Tanh, (32, 128, 256)),
    "sb3-policy": ((4, 64, 64, 2), nn.Tanh, (64, 256)),
    "mnist-784-128-10": ((784, 128, 10), nn.ReLU, (32, 128)),
}
CASES = [
    Case(name=name, widths=widths, activation=activation, batch_size=size)
    for name, (widths, activation, sizes) in NETWORKS.items()
    for size in sizes
]


def median_with_interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval by order statistics."""
    ordered, count = sorted(ratios), len(ratios)
    outside, rank = 0.0, 0
    for lowest in range(count // 2):
        outside += 2 * comb(count, lowest) / 2**count
        if outside > 0.05:
            break
        rank = lowest
    return statistics.median(ordered), ordered[rank], ordered[-1 - rank]


def measure(case: Case, steps_per_call: int, num_rounds: int, clock: Callable[[], int]) -> dict:
    """Return the times and ratios of a case."""
    torch.manual_seed(0)
    first = case.create()
    loss_fn = nn.MSELoss()
    x_data = torch.randn(NUM_SAMPLES, case.widths[0])
    y_data = torch.randn(NUM_SAMPLES, case.widths[-1])
    x, y = x_data[: case.batch_size].clone(), y_data[: case.batch_size].clone()
    indices = torch.randint(0, NUM_SAMPLES, (STEPS_PER_SAMPLE, case.batch_size))

    def loop(**options: bool) -> Callable[[], None]:
        model = copy.deepcopy(first)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **options)

        def run() -> None:
            for _ in range(STEPS_PER_SAMPLE):
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                optimizer.step()

        return run

    def fast(size: int) -> FastStep:
        model = copy.deepcopy(first)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        return fast_step(model, loss_fn, optimizer, steps_per_call=size)

    single, several = fast(1), fast(steps_per_call)

    def run_single() -> None:
        for _ in range(STEPS_PER_SAMPLE):
            single(x, y)

    def run_several() -> Tensor:
        return several.run(x_data, y_data, indices)

    ways: dict[str, Callable[[], object]] = {
        "eager": loop(),
        "fused": loop(fused=True),
        "one": run_single,
        "several": run_several,
    }
    for run in ways.values():
        run()
        run()
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(num_rounds):
        for name, run in ways.items():
            start_ns = clock()
            run()
            samples[name].append((clock() - start_ns) / STEPS_PER_SAMPLE)
    result: dict = asdict(case) | {"activation": case.activation.__name__}
    for name, taken in samples.items():
        result[f"{name}_step_ns"] = statistics.median(taken)
        if name == "eager":
            continue
        ratios = [e / t for e, t in zip(samples["eager"], taken, strict=True)]
        result[f"{name}_speedup"] = median_with_interval(ratios)
    for name, step in (("one", single), ("several", several)):
        assert step.cost is not None
        result[f"{name}_compile_ns"] = step.cost.compile_ns
        saved_ns = result["eager_step_ns"] - result[f"{name}_step_ns"]
        result[f"{name}_pays_off_after_steps"] = round(step.cost.compile_ns / saved_ns)
    return result


def main() -> None:
    """Measure the cases and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps-per-call", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--only", help="part of a network's name")
    parser.add_argument("--batch", type=int, help="this batch size alone")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.perf_counter_ns if args.clock == "wall" else time.process_time_ns
    results = []
    for case in CASES:
        if (args.only and args.only not in case.name) or args.batch not in (None, case.batch_size):
            continue
        found = measure(case, args.steps_per_call, args.rounds, clock)
        results.append(found)
        line = f"{case.name:17s} batch {case.batch_size:4d}"
        line += f"  eager {found['eager_step_ns'] / 1e3:6.0f} us"
        for name in ("fused", "one", "several"):
            value, low, high = found[f"{name}_speedup"]
            line += f"  {name} {value:5.2f}x [{low:.2f}, {high:.2f}]"
        for name in ("one", "several"):
            line += f"  compile {found[f'{name}_compile_ns'] / 1e9:.0f} s"
        print(line, file=sys.stderr if args.json else sys.stdout, flush=True)
    if args.json:
        machine = {"processor": cpu_name(), "threads": args.threads, "torch": torch.__version__}
        machine |= {"python": platform.python_version(), "clock": args.clock}
        document = {"machine": machine, "steps_per_call": args.steps_per_call, "results": results}
        print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()

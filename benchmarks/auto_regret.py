"""How much slower than the best the place is that `breakeven.auto` picks.

Run ``python benchmarks/auto_regret.py`` in an environment with breakeven; docs/auto.md explains
it. Every network of ``cpu_networks.py`` is trained at three batch sizes. The race that picks is
`auto`'s own, between the devices that are here; of the CPU it runs with one thread, with all, and
with one under bfloat16 autocast. Where there is no second device these three stand in for devices:
as different in speed, but on one machine. The oracle measures all of them in turn for longer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter_ns

import numpy as np
import torch
from cpu_networks import NETWORKS
from torch import nn

from breakeven.measure import OtherLoad
from breakeven.placement import race
from breakeven.placement.automatic import untouched
from breakeven.placement.training_place import BatchLoss, TrainingPlace, devices_present
from breakeven.processor import cpu_name
from breakeven.units import NS_PER_S, format_duration, format_percent

BATCH_SIZES = (8, 64, 512)
# Of a sample of the oracle: as long as one of the race, so that steps overlap alike.
SAMPLE_NS = 10_000_000
MIN_ROUNDS = 7


class Bfloat16Place(TrainingPlace):
    """The CPU under bfloat16 autocast."""

    def run_step(self) -> None:
        """Run a step under autocast."""
        with torch.autocast("cpu", torch.bfloat16):
            super().run_step()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """What was picked for a network at a batch size, and what would have been best.

    Args:
        network: Name of the network.
        batch_size: Of the batch.
        picked: Name of the place that the race chose.
        best: Name of the one that the oracle found.
        regret_fraction: How much longer a step takes at the former.
        race_ns: How long the race took.
        step_ns: The oracle's medians, by place.
    """

    network: str
    batch_size: int
    picked: str
    best: str
    regret_fraction: float
    race_ns: int
    step_ns: dict[str, float]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the regret of every pick, and of all; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description="the regret of breakeven.auto")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of a race (1)")
    parser.add_argument("--oracle", type=float, default=6.0, help="seconds of the oracle (6)")
    parser.add_argument("--only", help="one network")
    parser.add_argument("--json", action="store_true", help="print one document")
    options = parser.parse_args(argv)
    names = [options.only] if options.only else list(NETWORKS)
    load, picks = OtherLoad(), []
    for name in names:
        for batch_size in BATCH_SIZES:
            picks.append(measure_pick(name, batch_size, options.budget, options.oracle))
            print(line(picks[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    summary = summarize(picks, load.fraction())
    if options.json:
        print(json.dumps({"summary": summary, "picks": [asdict(pick) for pick in picks]}))
    else:
        print("\n" + "\n".join(f"{name}: {value}" for name, value in summary.items()))
    reached = summary["mean_regret_fraction"] <= 0.02 and summary["p95_regret_fraction"] <= 0.10
    return 0 if reached else 1


def measure_pick(name: str, batch_size: int, budget_s: float, oracle_s: float) -> Pick:
    """Race the places for a network, then ask the oracle."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    model, batch = network.create(), network.batch(batch_size)
    # Adam has no update for sparse gradients.
    optimizer = torch.optim.SGD if "sparse" in name else torch.optim.Adam
    make: Callable[[], list[TrainingPlace]] = lambda: places(model, batch, optimizer)  # noqa: E731
    with untouched():
        raced = make()
        result = race(raced, budget_ns=budget_s * NS_PER_S)
        left_out = {left.name for left in result.left_out}
        candidates = [place for place in make() if place.name not in left_out]
        step_ns = ask_oracle(candidates, oracle_s)
    assert result.winner is not None, result.left_out
    best = min(step_ns, key=lambda place: step_ns[place])
    return Pick(
        network=name,
        batch_size=batch_size,
        picked=result.winner,
        best=best,
        regret_fraction=step_ns[result.winner] / step_ns[best] - 1,
        race_ns=result.duration_ns,
        step_ns=step_ns,
    )


def places(
    model: nn.Module, batch: torch.Tensor, optimizer: type[torch.optim.Optimizer]
) -> list[TrainingPlace]:
    """Return the places that exist here, in the order of preference among equals."""
    num_cores = len(os.sched_getaffinity(0))
    call = BatchLoss(model, lambda output: output.float().square().mean())
    cpu = torch.device("cpu")
    found = [
        TrainingPlace(cpu, model, batch, call, optimizer, num_threads=count)
        for count in sorted({1, num_cores})
    ]
    low_precision = Bfloat16Place(cpu, model, batch, call, optimizer, num_threads=1)
    low_precision.name = "cpu, bfloat16"
    others = [device for device in devices_present() if device != cpu]
    return [
        *found,
        low_precision,
        *(TrainingPlace(device, model, batch, call, optimizer) for device in others),
    ]


def ask_oracle(candidates: Sequence[TrainingPlace], oracle_s: float) -> dict[str, float]:
    """Return the median step of each place, all measured in turn for some seconds."""
    for place in candidates:
        place.prepare()
        sample_ns(place, 2)
    num_steps = {place.name: max(1, int(SAMPLE_NS / sample_ns(place, 1))) for place in candidates}
    samples: dict[str, list[float]] = {place.name: [] for place in candidates}
    started_ns, num_rounds = perf_counter_ns(), 0
    while num_rounds < MIN_ROUNDS or perf_counter_ns() - started_ns < oracle_s * NS_PER_S:
        for place in candidates:
            samples[place.name].append(sample_ns(place, num_steps[place.name]))
        num_rounds += 1
    for place in candidates:
        place.close()
    return {name: statistics.median(values) for name, values in samples.items()}


def sample_ns(place: TrainingPlace, num_steps: int) -> float:
    """Return nanoseconds per step of some steps back to back."""
    place.enter()
    place.synchronize()
    started_ns = perf_counter_ns()
    for _ in range(num_steps):
        place.run_step()
    place.synchronize()
    return (perf_counter_ns() - started_ns) / num_steps


def line(pick: Pick) -> str:
    """Return a pick in one line."""
    times = ", ".join(f"{name} {format_duration(ns, 2)}" for name, ns in pick.step_ns.items())
    return (
        f"{pick.network:20} {pick.batch_size:4}  picked {pick.picked:14} "
        f"regret {format_percent(pick.regret_fraction):>5}  "
        f"in {format_duration(pick.race_ns, 2):>7}  ({times})"
    )


def summarize(picks: Sequence[Pick], other_load: float) -> dict[str, float | str]:
    """Return mean and 95th percentile of the regret, also of always taking one place."""
    regrets = [pick.regret_fraction for pick in picks]
    return {
        "machine": f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores, torch {torch.__version__}",
        "num_picks": len(picks),
        "mean_regret_fraction": round(statistics.fmean(regrets), 4),
        "p95_regret_fraction": round(float(np.quantile(regrets, 0.95)), 4),
        "max_regret_fraction": round(max(regrets), 4),
        "mean_race_s": round(statistics.fmean(pick.race_ns for pick in picks) / NS_PER_S, 3),
        "max_race_s": round(max(pick.race_ns for pick in picks) / NS_PER_S, 3),
        **{
            f"mean_regret_fraction_of_always_{name}": round(always, 4)
            for name, always in regret_of_one(picks).items()
        },
        "other_load_fraction": round(other_load, 3),
    }


def regret_of_one(picks: Sequence[Pick]) -> dict[str, float]:
    """Return the mean regret of taking the same place every time, by place."""
    common = set.intersection(*(set(pick.step_ns) for pick in picks))
    return {
        name: statistics.fmean(pick.step_ns[name] / pick.step_ns[pick.best] - 1 for pick in picks)
        for name in sorted(common)
    }


if __name__ == "__main__":
    sys.exit(main())

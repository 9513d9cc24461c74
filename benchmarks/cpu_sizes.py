"""How the time of a training step on the CPU grows with the batch size.

Run ``python benchmarks/cpu_sizes.py measure -o benchmarks/data/cpu_sizes_DATE.csv`` to time the
networks of ``cpu_networks.py`` at sizes doubling from 1, with 1 thread or ``--threads 2``, and
``python benchmarks/cpu_sizes.py report FILE`` to see how well a few sizes predict the others.

Each size of each network is timed in a fresh process, as ``breakeven check`` does, in rounds over
everything, so that other work on the machine disturbs different sizes in different rounds. A step
during which the process lost a processor is not kept, unless the machine was idle but for it, or
the step ran on one thread: then its processor time is taken for its time.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from cpu_networks import NETWORKS, train_step
from cpu_size_curves import (
    DISTURBED,
    TASKS,
    fit_spread,
    hold_out_halves,
    quietest,
    read_rows,
    summarize,
)

from breakeven.measure import OtherLoad
from breakeven.processor import cpu_name
from breakeven.timing import BUSY_FRACTION

COLUMNS = ("network", "threads", "size", "round", "clock", "num_disturbed", "samples_us")
NUM_ROUNDS = 4
# What one size takes in one round, at most, where its steps are short.
BUDGET_S = 0.1
NUM_SAMPLES = 12
FEWEST_SAMPLES = 3
NUM_WARMUP = 2
# A size is the last one when its step takes longer.
LONG_STEP_NS = 150_000_000
LARGEST_SIZE = 65_536
# Longer waits mean that the process will not get a quiet moment in this round.
PATIENCE_S = 2.0
# Of the machine, used by other processes: below it a lost processor was back at once.
QUIET_FRACTION = 0.04
# How long to look at the machine to tell whether it is busy.
GLANCE_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Times of undisturbed steps in one process."""

    clock: str
    num_disturbed: int
    steps_ns: tuple[int, ...]


def take_samples(network: str, num_threads: int, size: int) -> Samples:
    """Time steps in this process; see the module's text for which are kept."""
    torch.manual_seed(0)
    torch.set_num_threads(num_threads)
    described = NETWORKS[network]
    step = train_step(described.create(), described.batch(size))
    for _ in range(NUM_WARMUP):
        step()
    walls: list[int] = []
    quiet: list[int] = []
    own: list[int] = []
    load = OtherLoad()
    start_s = time.monotonic()
    while len(quiet) < NUM_SAMPLES:
        spent_s = time.monotonic() - start_s
        if spent_s > BUDGET_S and len(quiet) >= FEWEST_SAMPLES:
            break
        patience_s = BUDGET_S if num_threads == 1 else PATIENCE_S
        if spent_s > patience_s and len(walls) >= FEWEST_SAMPLES:
            break
        wall_ns, own_ns, is_quiet = _time_step(step)
        walls.append(wall_ns)
        own.append(own_ns)
        if is_quiet:
            quiet.append(wall_ns)
    num_disturbed = len(walls) - len(quiet)
    if len(quiet) >= FEWEST_SAMPLES:
        return Samples(clock="wall", num_disturbed=num_disturbed, steps_ns=tuple(quiet))
    if num_threads == 1:
        kept = tuple(own[:NUM_SAMPLES])
        return Samples(clock="processor", num_disturbed=num_disturbed, steps_ns=kept)
    if load.fraction() < QUIET_FRACTION:
        return Samples(clock="wall", num_disturbed=num_disturbed, steps_ns=tuple(walls))
    kept = tuple(sorted(walls)[:FEWEST_SAMPLES])
    return Samples(clock=DISTURBED, num_disturbed=num_disturbed, steps_ns=kept)


def _time_step(step: Callable[[], None]) -> tuple[int, int, bool]:
    """Return one step's time, its processor time, and whether it kept its processors."""
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    own_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    step()
    wall_ns, own_ns = time.perf_counter_ns() - wall_ns, time.process_time_ns() - own_ns
    return wall_ns, own_ns, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == switches


def measure(path: Path, num_threads: int, num_rounds: int, only: str | None) -> None:
    """Time all networks, or one; add one row for each network, size and round to the file."""
    context = multiprocessing.get_context("fork")  # torch is imported once, and has run nothing yet
    past = read_rows(path) if path.exists() else []
    largest = {row.network: row.size for row in sorted(past, key=lambda row: row.size)}
    first = 1 + max((row.round for row in past if row.num_threads == num_threads), default=-1)
    if not path.exists():
        path.write_text(f"# {_machine()}\n{','.join(COLUMNS)}\n")
    for number, network in itertools.product(
        range(first, first + num_rounds), [only] if only else NETWORKS
    ):
        size = 1
        while size <= largest.get(network, LARGEST_SIZE):
            if num_threads > 1:
                _await_quiet()
            with context.Pool(1) as pool:
                samples = pool.apply(take_samples, (network, num_threads, size))
            steps_us = " ".join(f"{step_ns / 1e3:.1f}" for step_ns in samples.steps_ns)
            row = (network, num_threads, size, number, samples.clock, samples.num_disturbed)
            with path.open("a") as file:
                file.write(",".join(map(str, (*row, steps_us))) + "\n")
            if network not in largest and min(samples.steps_ns) > LONG_STEP_NS:
                largest[network] = size
            size *= 2
        largest.setdefault(network, LARGEST_SIZE)
        print(f"round {number}: {network}", file=sys.stderr)


def _await_quiet() -> None:
    """Wait until other processes leave this machine alone, but not for long."""
    start_s = time.monotonic()
    while time.monotonic() - start_s < PATIENCE_S:
        load = OtherLoad()
        time.sleep(GLANCE_S)
        if load.fraction() < BUSY_FRACTION:
            return


def report(path: Path) -> None:
    """Print errors and coverage, with the rates of one half of the networks on the other."""
    curves = quietest(read_rows(path))
    print(f"{len(curves)} curves, {sum(map(len, curves.values()))} sizes; fitted to all of them:")
    print(fit_spread(curves))
    found = hold_out_halves(curves)
    print(f"{'predicted':28}{'n':>6}{'median':>9}{'P90':>9}{'covered':>9}")
    for task in TASKS:
        summary = summarize([each for each in found if each.task == task])
        print(
            f"{task:28}{summary.count:6}{summary.median_fraction:9.1%}"
            f"{summary.p90_fraction:9.1%}{summary.coverage_fraction:9.1%}"
        )


def _machine() -> str:
    return (
        f"{cpu_name()}, {torch.get_num_threads()} processors; {platform.system()}; "
        f"Python {platform.python_version()}, torch {torch.__version__}; "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}"
    )


def main() -> None:
    """Measure or report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(required=True, dest="command")
    measuring = commands.add_parser("measure", help="time the networks on this machine")
    measuring.add_argument("-o", dest="path", type=Path, required=True, help="CSV file to add to")
    measuring.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    measuring.add_argument("--rounds", type=int, default=NUM_ROUNDS, help="default: %(default)s")
    measuring.add_argument("--only", choices=NETWORKS, help="one network")
    reporting = commands.add_parser("report", help="errors of predictions from a few sizes")
    reporting.add_argument("path", type=Path, help="CSV file that was measured")
    arguments = parser.parse_args()
    if arguments.command == "report":
        report(arguments.path)
        return
    measure(arguments.path, arguments.threads, arguments.rounds, arguments.only)


if __name__ == "__main__":
    main()

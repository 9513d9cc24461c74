"""Whether an operator is faster on MPS than on the CPU of the same Apple chip.

``python benchmarks/apple_ops.py apple_ops.csv.gz`` predicts each operator of the table on MPS, by a
calibration that has seen no operator of the chip, and sets it beside the time that the chip's CPU
was measured to take: what `breakeven check` compares on a Mac. It counts how often the faster one
is named, and how often without the operators that take both about as long. The table is not part of
the repository.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np

from breakeven.cost import StepCosts, launch_costs, load_efficiencies, load_step_effects, lower
from breakeven.device import find_device
from breakeven.trace import Settings
from breakeven.units import NS_PER_MS

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lab.table_ops import apple_ops
from lab.timed_tables import apple_chip

_TIE_RATIO = 1.2
# What the host takes for the operator itself.
_HOST_NS = 10_000.0


def predicted_ms(row: dict[str, str], costs: StepCosts) -> float:
    """Return the time of a row on MPS, waited for."""
    device = find_device(apple_chip(row))
    kernels = [kernel for op in apple_ops(row) for kernel in lower(op, Settings()).kernels]
    launch = launch_costs(device)
    call_ns = _HOST_NS + launch.launch_ns + launch.latency_ns + launch.sync_ns
    return (call_ns + float(costs.kernel_times(kernels, [device]).time_ns.sum())) / NS_PER_MS


def without(chip: str) -> StepCosts:
    """Return costs that have seen no operator of a chip."""
    table, device = load_efficiencies(), find_device(chip)
    others = tuple(entry for entry in table.devices if entry.device != device.id)
    known = msgspec.structs.replace(table, devices=others)
    return StepCosts(efficiencies=known, effects=load_step_effects())


def main(argv: list[str]) -> int:
    """Print how often the faster one is named, by chip and by operator."""
    with gzip.open(Path(argv[0]), "rt", newline="") as stream:
        rows = list(csv.DictReader(stream))
    times: defaultdict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    examples: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in rows:
        key = (row["device"], row["op"], row["args"])
        times[key][row["backend"]].append(float(row["latency_ms"]))
        examples[key] = row
    costs = {chip: without(chip) for chip in {apple_chip(row) for row in rows}}
    found: defaultdict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for key, by_backend in times.items():
        if len(by_backend) < 2:
            continue
        cpu_ms, mps_ms = (float(np.mean(by_backend[f"torch {on}"])) for on in ("cpu", "mps"))
        if not mps_ms:
            continue  # shorter than the table resolves
        chip = apple_chip(examples[key])
        is_right = (cpu_ms > predicted_ms(examples[key], costs[chip])) == (cpu_ms > mps_ms)
        is_tie = max(cpu_ms, mps_ms) <= _TIE_RATIO * min(cpu_ms, mps_ms)
        for group in ("all", chip, key[1]):
            found[group].append((is_right, is_tie))
    print(f"{'':26} right  pairs   without ties")
    for group, answers in found.items():
        clear = [right for right, is_tie in answers if not is_tie]
        share = 100 * np.mean([right for right, _ in answers])
        share_clear = 100 * np.mean(clear)
        print(f"{group:26} {share:4.0f} % {len(answers):6} {share_clear:6.0f} % {len(clear):6}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

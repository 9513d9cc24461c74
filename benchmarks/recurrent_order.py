"""Count for how many pairs of GPUs the faster one at a recurrent layer is named.

``python benchmarks/recurrent_order.py ops_deepbench_rnn.csv`` reads DeepBench's table, which
CONTRIBUTING describes, and predicts each pair of GPUs that timed the same layer twice: with what is
calibrated, and with both GPUs of the pair left out, all boards of their chips with them. Times that
differ by less than 10 % are no pair. A layer counts as bound by latency where it is on both GPUs.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np

from breakeven.calibrate.fit import TimedKernel
from breakeven.cost import EfficiencyTable, kernel_times, load_efficiencies

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lab.timed_tables import read_recurrent

_LEAST_RATIO = 1.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two GPUs with the same layer; ``ratio`` is the time of the first over that of the second."""

    measured_ratio: float
    predicted_ratio: float
    has_same_library: bool
    is_latency_bound: bool

    @property
    def is_right(self) -> bool:
        return (self.measured_ratio > 1) == (self.predicted_ratio > 1)


def _without(table: EfficiencyTable, rows: Sequence[TimedKernel]) -> EfficiencyTable:
    chips = {row.device.chip for row in rows}
    return msgspec.structs.replace(
        table, devices=tuple(item for item in table.devices if item.chip not in chips)
    )


def pairs_of(timed: Iterable[TimedKernel], *, leaves_out: bool) -> Iterator[Pair]:
    """Yield the pairs of GPUs that timed the same layer; both may be left out."""
    layers: dict[object, dict[str, list[TimedKernel]]] = defaultdict(lambda: defaultdict(list))
    for row in timed:
        layers[row.kernel, row.others][row.source + row.device.id].append(row)
    for groups in layers.values():
        for first, second in combinations(groups.values(), 2):
            if first[0].device.chip == second[0].device.chip:
                continue
            measured = [float(np.median([row.time_ns for row in rows])) for rows in (first, second)]
            ratio = measured[0] / measured[1]
            if max(ratio, 1 / ratio) < _LEAST_RATIO:
                continue
            table = load_efficiencies()
            if leaves_out:
                table = _without(table, [first[0], second[0]])
            times = kernel_times(
                [first[0].kernel, *first[0].others],
                [first[0].device, second[0].device],
                efficiencies=table,
                warm_fraction=1.0,
            )
            predicted = times.time_ns.sum(axis=0)
            yield Pair(
                measured_ratio=ratio,
                predicted_ratio=float(predicted[0] / predicted[1]),
                has_same_library=first[0].source == second[0].source,
                is_latency_bound=bool(times.is_latency_bound[0].all()),
            )


def _print(title: str, pairs: Sequence[Pair]) -> None:
    right = sum(pair.is_right for pair in pairs)
    print(f"  {title:42} {right:5} of {len(pairs):5}  {100 * right / max(1, len(pairs)):5.1f} %")


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    timed = tuple(read_recurrent(parser.parse_args().table))
    for leaves_out in (False, True):
        pairs = list(pairs_of(timed, leaves_out=leaves_out))
        print("both GPUs left out" if leaves_out else "calibrated GPUs")
        _print("all", pairs)
        _print("same library", [pair for pair in pairs if pair.has_same_library])
        latency = [pair for pair in pairs if pair.is_latency_bound]
        _print("bound by latency", latency)
        _print("bound by latency, same library", [p for p in latency if p.has_same_library])


if __name__ == "__main__":
    main()

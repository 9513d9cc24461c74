"""Fit how much narrower a ratio of two predictions is than two independent errors would make it.

    python -m lab.ratios TABLE.csv ...

Pairs are two measured steps of one source, GPU, host, framework and precision, predicted without
their source, and similar by the limits of `compare`. Each source counts alike. The printed share is
a quantile of a pair's log error over its independent half-width; each source's coverage is that of
the share of the others.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from breakeven.progress import SilentProgress
from breakeven.report import LeaveOut, RowPrediction
from breakeven.report.comparison import DEVICE_BOUNDS, LEAST_COMMON, MOST_RATIO, common_fraction
from breakeven.trace import StepTrace
from breakeven.validate import read_table
from breakeven.validate.traced_rows import RowOutcome, TracedRows
from breakeven.verdict import curve_point, log_ratio
from lab.held_out import HeldOutPredictor
from lab.step_effects import on_one_gpu

# A new source errs more than those of a fit: at 90 %, the shares of the others cover 67 % of
# jcjohnson. This is the lowest level, in steps of 1 %, at which they cover at least 85 % of each
# source. The level is chosen by the same sources, so their coverage at it is optimistic.
LEVEL = 0.95


class Pair(NamedTuple):
    """Two steps of one machine.

    Args:
        common: Their share of common operators.
        gap: Logarithm of the ratio of their predicted times.
        used: Error of that, in half-widths of independent predictions.
    """

    common: float
    gap: float
    used: float

    @property
    def is_similar(self) -> bool:
        """Return whether `compare` takes them as similar."""
        return self.common >= LEAST_COMMON and abs(self.gap) <= math.log(MOST_RATIO)


def pairs_by_source(steps: TracedRows, outcomes: Mapping[int, RowOutcome]) -> dict[str, list[Pair]]:
    """Return the pairs of predicted steps that share machine, precision and bottleneck of a GPU."""
    groups: defaultdict[tuple[object, ...], list[tuple[int, RowPrediction]]] = defaultdict(list)
    for position, outcome in outcomes.items():
        row = steps.rows[position]
        if isinstance(outcome, RowPrediction) and outcome.bound in DEVICE_BOUNDS:
            machine = row.source, row.device, row.host, row.framework, row.precision
            groups[*machine, outcome.bound].append((position, outcome))
    common: dict[tuple[int, int], float] = {}
    pairs: defaultdict[str, list[Pair]] = defaultdict(list)
    for (source, *_), group in groups.items():
        for (i, one), (j, other) in itertools.combinations(group, 2):
            first, second = steps.steps[i], steps.steps[j]
            assert isinstance(first, StepTrace), "a predicted step has a trace"
            assert isinstance(second, StepTrace), "a predicted step has a trace"
            key = id(first), id(second)
            if key not in common:
                common[key] = common_fraction(first, second)
            ratio = log_ratio(*(curve_point(1, each.estimate) for each in (one, other)))
            error = math.log(steps.rows[i].value_ns / steps.rows[j].value_ns) - ratio.value
            width = ratio.high - ratio.value if error > 0 else ratio.value - ratio.low
            pairs[str(source)].append(Pair(common[key], ratio.value, abs(error) / width))
    return dict(pairs)


def quantile(shares: Mapping[str, list[float]]) -> float:
    """Return the share that ``LEVEL`` of the pairs need, each source counting alike."""
    values = np.concatenate([np.array(each) for each in shares.values()])
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in shares.values()])
    return float(np.quantile(values, LEVEL, weights=weights, method="inverted_cdf"))


def main() -> None:
    """Print the fit, and the coverage of each source by the fit to the others."""
    parser = argparse.ArgumentParser(description="Fit the width of ratios of predictions.")
    parser.add_argument("tables", type=Path, nargs="+", metavar="TABLE.csv")
    rows = on_one_gpu(read_table(*parser.parse_args().tables))
    steps = TracedRows.of(rows, progress=SilentProgress())
    predictor = HeldOutPredictor(LeaveOut.SOURCE, progress=SilentProgress())
    outcomes: dict[int, RowOutcome] = {}
    for calibration, _, left_out in predictor.calibrations(steps, num_predicted=len(rows)):
        outcomes |= zip(left_out, steps.predict(left_out, calibration), strict=True)
    pairs = pairs_by_source(steps, outcomes)
    similar = {
        source: [pair.used for pair in own if pair.is_similar] for source, own in pairs.items()
    }
    shares = {source: own for source, own in similar.items() if own}
    print(f"{sum(map(len, shares.values()))} pairs: {quantile(shares):.2f}")
    for source, own in shares.items():
        share = quantile({name: each for name, each in shares.items() if name != source})
        covered = np.mean(np.array(own) <= share)
        print(f"{source}: {len(own)} pairs, share of the others {share:.2f}, covered {covered:.2f}")


if __name__ == "__main__":
    main()

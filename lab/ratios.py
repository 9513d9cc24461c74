"""Fit how much narrower a ratio of two predictions is than two independent errors would make it.

    python -m lab.validate TABLE --leave-out source --only num_devices=1 -o rows.json
    python -m lab.ratios rows.json

Pairs are rows of one source, GPU, host, framework and network, with the same bottleneck and
predicted times within a factor of 2. Each source counts alike. The printed share is the 90 %
quantile of a pair's log error over its independent half-width; each source's coverage is that of
the share of the others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from breakeven.report.comparison import MOST_RATIO

COVERAGE = 0.9


def used_shares(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the used share of the independent half-width of each pair, by source."""
    groups: defaultdict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["predicted_ms"]:
            same = ("source", "device", "host", "framework", "workload", "bound")
            groups[tuple(str(row[name]) for name in same)].append(row)
    shares: defaultdict[str, list[float]] = defaultdict(list)
    for group in groups.values():
        for one, other in itertools.combinations(group, 2):
            gap = math.log(one["predicted_ms"] / other["predicted_ms"])
            if abs(gap) > math.log(MOST_RATIO):
                continue
            error = math.log(one["value_ms"] / other["value_ms"]) - gap
            widths = [math.log(row["high_ms"] / row["low_ms"]) / 2 for row in (one, other)]
            shares[one["source"]].append(abs(error) / math.hypot(*widths))
    return dict(shares)


def quantile(shares: dict[str, list[float]]) -> float:
    """Return the share that ``COVERAGE`` of the pairs keep, each source counting alike."""
    values = np.concatenate([np.array(each) for each in shares.values()])
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in shares.values()])
    return float(np.quantile(values, COVERAGE, weights=weights, method="inverted_cdf"))


def main() -> None:
    """Print the fit, and the coverage of each source by the fit to the others."""
    parser = argparse.ArgumentParser(description="Fit the width of ratios of predictions.")
    parser.add_argument("rows", type=Path)
    shares = used_shares(json.loads(parser.parse_args().rows.read_text())["rows"])
    print(f"{sum(map(len, shares.values()))} pairs: {quantile(shares):.2f}")
    for source, own in shares.items():
        share = quantile({name: each for name, each in shares.items() if name != source})
        covered = np.mean(np.array(own) <= share)
        print(f"{source}: {len(own)} pairs, share of the others {share:.2f}, covered {covered:.2f}")


if __name__ == "__main__":
    main()

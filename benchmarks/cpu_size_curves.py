"""Measured step times along the batch size, and how well a few sizes predict the others.

Needs no torch: ``cpu_sizes.py`` measures, this reads what it wrote.
"""

from __future__ import annotations

import csv
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from breakeven.timing import Estimate, Measurement
from breakeven.verdict import SizeCurve, SizeSpread

# Of the rounds of a size, those in which other work took the processors all the time.
DISTURBED = "disturbed"
# What is held out of a curve, by how the predicted size lies to the known ones.
TASKS = (
    "between, known 4x apart",
    "between, known 16x apart",
    "beyond, 4x larger",
    "beyond, 16x larger",
    "beyond, 4x smaller",
    "beyond, 16x smaller",
    "one known, 4x larger",
    "one known, 4x smaller",
)
# What each rate of the spread is to cover; with one size known, there is more to not know.
TASKS_OF_RATE = {"between": TASKS[0:2], "larger": TASKS[2:4], "smaller": TASKS[4:6]}
# Of the predictions of a task, those that may lie outside, on either side.
TAIL_FRACTION = 0.05
_LARGEST_RATE = 2.0
_RATE_STEP = 0.01
# Sizes known of a curve that is continued: as few as a short search leaves, and as many as a long.
NUM_KNOWN = (2, 3, 4)

Key = tuple[str, int]
Times = Mapping[int, Measurement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size of one network in one round."""

    network: str
    num_threads: int
    size: int
    round: int
    clock: str
    steps_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One size predicted from others, beside what was measured there."""

    task: str
    key: Key
    size: int
    predicted: Estimate
    measured_ns: float

    @property
    def error_fraction(self) -> float:
        """Return by how much the prediction is off, positive where it is too long."""
        return self.predicted.value_ns / self.measured_ns - 1

    @property
    def is_covered(self) -> bool:
        """Return whether the measured time lies in the interval."""
        return self.predicted.low_ns <= self.measured_ns <= self.predicted.high_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of many predictions, without their sign, and how many intervals held."""

    count: int
    median_fraction: float
    p90_fraction: float
    coverage_fraction: float


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file of measurements."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [
        Row(
            network=fields["network"],
            num_threads=int(fields["threads"]),
            size=int(fields["size"]),
            round=int(fields["round"]),
            clock=fields["clock"],
            steps_ns=tuple(round(1e3 * float(each)) for each in fields["samples_us"].split()),
        )
        for fields in csv.DictReader(lines)
    ]


def quietest(rows: Iterable[Row]) -> dict[Key, dict[int, Measurement]]:
    """Return each curve, with the round of each size that other work slowed down least.

    Other work only ever adds time. A size of which every round was disturbed is left out.
    """
    curves: dict[Key, dict[int, Measurement]] = {}
    for row in rows:
        if row.clock == DISTURBED:
            continue
        times = curves.setdefault((row.network, row.num_threads), {})
        new = Measurement(samples_ns=row.steps_ns)
        old = times.get(row.size)
        if old is None or new.median_ns < old.median_ns:
            times[row.size] = new
    return {key: dict(sorted(times.items())) for key, times in curves.items()}


def hold_out(
    curves: Mapping[Key, Times],
    spread: SizeSpread | None = None,
    tasks: Sequence[str] = TASKS,
) -> list[HeldOut]:
    """Return predictions of sizes from others of the same curve."""
    found: list[HeldOut] = []
    for key, times in curves.items():
        for task, known, target in _splits(sorted(times)):
            if task not in tasks:
                continue
            curve = SizeCurve({size: times[size].estimate for size in known}, spread)
            found.append(
                HeldOut(
                    task=task,
                    key=key,
                    size=target,
                    predicted=curve.at(target),
                    measured_ns=times[target].median_ns,
                )
            )
    return found


def summarize(found: Sequence[HeldOut]) -> Summary:
    """Return median and 90th percentile of the errors, and the share of intervals that held."""
    errors = np.abs([each.error_fraction for each in found])
    return Summary(
        count=len(found),
        median_fraction=float(np.median(errors)),
        p90_fraction=float(np.quantile(errors, 0.9)),
        coverage_fraction=float(np.mean([each.is_covered for each in found])),
    )


def fit_spread(curves: Mapping[Key, Times]) -> SizeSpread:
    """Return the least rates whose intervals leave out no more than they may, on either side.

    A rate serves all tasks of ``TASKS_OF_RATE`` alike, however many sizes each of them has.
    """
    spread = SizeSpread()
    for name, tasks in TASKS_OF_RATE.items():
        faster = _least_rate(
            curves, tasks, lambda rate, name=name: {name: (rate, 0.0)}, above=False
        )
        slower = _least_rate(curves, tasks, lambda rate, name=name: {name: (0.0, rate)}, above=True)
        spread = replace(spread, **{name: (faster, slower)})
    return spread


def hold_out_halves(curves: Mapping[Key, Times]) -> list[HeldOut]:
    """Return predictions with the rates that the other half of the networks gives."""
    networks = sorted({network for network, _ in curves})
    found: list[HeldOut] = []
    for parity in (0, 1):
        half = set(networks[parity::2])
        fitted = fit_spread({key: curves[key] for key in curves if key[0] not in half})
        found += hold_out({key: curves[key] for key in curves if key[0] in half}, fitted)
    return found


def _least_rate(
    curves: Mapping[Key, Times],
    tasks: Sequence[str],
    fields: Callable[[float], dict[str, tuple[float, float]]],
    *,
    above: bool,
) -> float:
    """Return the least rate at which few enough times lie above (or else below) the interval."""

    def is_enough(step: int) -> bool:
        found = hold_out(curves, replace(SizeSpread(), **fields(step * _RATE_STEP)), tasks)
        return (
            np.mean(
                [
                    np.mean([_is_outside(each, above) for each in found if each.task == task])
                    for task in tasks
                ]
            )
            <= TAIL_FRACTION
        )

    # Wider intervals leave out fewer, so the least rate is found by halving.
    steps = range(round(_LARGEST_RATE / _RATE_STEP))
    return bisect_left(steps, True, key=is_enough) * _RATE_STEP


def _is_outside(each: HeldOut, above: bool) -> bool:
    if above:
        return each.measured_ns > each.predicted.high_ns
    return each.measured_ns < each.predicted.low_ns


def _splits(sizes: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield task, known sizes and the size to predict, for sizes that double."""
    present = set(sizes)
    for step, start in itertools.chain(((4, s) for s in (1, 2)), ((16, s) for s in (1, 2, 4, 8))):
        known = tuple(size for size in _ladder(start, step, sizes[-1]) if size in present)
        for left, right in itertools.pairwise(known):
            if right == left * step:
                for size in sizes:
                    if left < size < right:
                        yield f"between, known {step}x apart", known, size
    for first in sizes:
        for count in (1, *NUM_KNOWN):
            known = tuple(first * 4**power for power in range(count))
            if not present.issuperset(known):
                continue
            for factor in (4,) if count == 1 else (4, 16):
                which = "one known" if count == 1 else "beyond"
                if known[-1] * factor in present:
                    yield f"{which}, {factor}x larger", known, known[-1] * factor
                if first % factor == 0 and first // factor in present:
                    yield f"{which}, {factor}x smaller", known, first // factor


def _ladder(start: int, step: int, largest: int) -> Iterator[int]:
    while start <= largest:
        yield start
        start *= step

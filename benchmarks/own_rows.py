"""Choose those rows of timm's results that teach what is peculiar to their GPUs.

``python benchmarks/own_rows.py TABLE.csv[.gz] ... -o ROWS.csv`` takes one network of each family,
seed 1, in contiguous memory and eager, on each GPU, under each version of torch and in each phase:
networks of one family repeat each other, and what is left out tests the result. From torch 1.13 on
networks normalize in the dtype of autocast, as `compiled_pairs.py` has it. ``python -m
lab.fit steps ... --own ROWS.csv`` takes the result.

``python benchmarks/own_rows.py --report ROWS.csv STEPS.csv ...`` says how far steps are off whose
family of networks has taught nothing, and how far where no row of ROWS.csv has. ``STEPS.csv`` are
the tables that the general effects were fitted to.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from compiled_pairs import Record, read_records, with_fast_norm

from breakeven.cost import Era, era_of, load_efficiencies
from breakeven.progress import SilentProgress
from breakeven.report import LeaveOut, RowPrediction
from breakeven.validate import MeasuredRow, read_table, shipped_calibration
from breakeven.validate.traced_rows import RowOutcome, TracedRows

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lab.held_out import folds
from lab.step_effects import fit_own_effects, on_one_gpu
from lab.step_parts import RowParts


def choose(records: Sequence[Record]) -> list[Record]:
    """Return the rows of one network of each family, of those that were tried most often."""
    by_workload: defaultdict[str, list[Record]] = defaultdict(list)
    workloads: defaultdict[str, set[str]] = defaultdict(set)
    for record in records:
        is_eager = (record["compile"] or "none") == "none"
        is_gpu = not record["device"].startswith("CPU")
        if is_gpu and is_eager and record["memory_format"] == "contiguous" and record["value_ms"]:
            by_workload[record["workload"]].append(_as_normalized(record))
            workloads[record["family"]].add(record["workload"])
    chosen: list[Record] = []
    generator = random.Random(1)
    for _, members in sorted(workloads.items()):
        most = max(len(by_workload[name]) for name in members)
        candidates = sorted(name for name in members if len(by_workload[name]) == most)
        chosen += by_workload[generator.choice(candidates)]
    return chosen


def _as_normalized(record: Record) -> Record:
    if era_of(record["framework"]) not in (Era.TORCH_1_LATE, Era.TORCH_2):
        return record
    return {**record, "workload": with_fast_norm(record["workload"])}


def report(own_table: Path, tables: Sequence[Path]) -> None:
    """Print errors by GPU and by era, of rows whose family is left out and before any is seen."""
    own = read_table(own_table)
    general = on_one_gpu(read_table(*tables))
    steps = TracedRows.of([*own, *general], progress=SilentProgress())
    samples = RowParts(steps).samples(load_efficiencies())

    def without(left_out: Sequence[int]) -> list[RowOutcome]:
        """Return the outcomes of the rows of a fold, the effects being learned from all others."""
        known = [samples[position] for position in sorted(samples.keys() - set(left_out))]
        shipped = shipped_calibration()
        effects = fit_own_effects(known, shipped.effects)
        return list(steps.predict(left_out, replace(shipped, effects=effects)))

    everything = range(len(own))
    held_out: dict[int, RowOutcome] = {}
    for _, left_out in folds(own, LeaveOut.MODEL).values():
        held_out |= dict(zip(left_out, without(left_out), strict=True))
    _print_errors("no row has taught", own, dict(zip(everything, without(everything), strict=True)))
    _print_errors("all but its family have", own, held_out)


def _print_errors(
    title: str, rows: Sequence[MeasuredRow], outcomes: Mapping[int, RowOutcome]
) -> None:
    groups: defaultdict[tuple[str, str], list[tuple[float, bool]]] = defaultdict(list)
    for position, outcome in outcomes.items():
        row = rows[position]
        if isinstance(outcome, RowPrediction):
            estimate = outcome.estimate
            is_within = estimate.low_ns <= row.value_ns <= estimate.high_ns
            figures = (abs(estimate.value_ns / row.value_ns - 1), is_within)
            groups[row.device, era_of(row.framework).value].append(figures)
    print(title)
    for (device, era), members in sorted(groups.items()):
        errors, within = np.array(members).T
        print(
            f"  {device}, {era:18} {len(errors):4} rows, median {np.median(errors):6.1%}, "
            f"P90 {np.percentile(errors, 90):6.1%}, 90 % intervals hold {np.mean(within):4.0%}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Write the rows, or print how far they are off; 1 where there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("-o", "--output", type=Path, metavar="ROWS.csv")
    does.add_argument("--report", type=Path, metavar="ROWS.csv")
    args = parser.parse_args(argv)
    if args.report is not None:
        report(args.report, args.tables)
        return 0
    chosen = choose([record for table in args.tables for record in read_records(table)])
    if not chosen:
        print("no row is chosen", file=sys.stderr)
        return 1
    columns = list(dict.fromkeys(name for record in chosen for name in record))
    with args.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(chosen)
    print(f"{len(chosen)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())

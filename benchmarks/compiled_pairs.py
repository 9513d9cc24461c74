"""Hold the predicted ratio of compiled to eager steps against measured pairs.

``python benchmarks/compiled_pairs.py TABLE.csv [...] [--sample N] [--rows]`` prints for each table
how many ratios are predicted within 15 %, how many on the right side of 1, and the median error. A
table has the columns of ``breakeven validate``; rows that agree in all but ``compile``, batch size
and time are a pair, compared per sample. Or it has a pair in each row: ``batch_eager``,
``batch_compiled``, ``eager_ms`` and ``compiled_ms``, of inference in torch.compile's default mode.
Rows of which this makes no steps are counted. Recorded steps are kept, so a second run is quick.
``--fast-norm`` lets timm's networks normalize in the dtype of autocast, as in its own results from
torch 1.13 on: a ResNet-50 with group norms takes half as long there as under 1.12, one with batch
norms nine tenths.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from breakeven.device import find_device
from breakeven.errors import BreakevenError
from breakeven.progress import SilentProgress
from breakeven.report import RowPrediction
from breakeven.trace import NumberFormat, TimedPhase
from breakeven.validate import MeasuredRow, ShippedPredictor

NEAR = 0.15
_LIBRARIES = ("timm:", "torchvision:", "transformers:")
Record = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One step eager and compiled, measured on one GPU."""

    eager: MeasuredRow
    compiled: MeasuredRow

    def ratio(self, eager_ns: float, compiled_ns: float) -> float:
        """Return compiled over eager, per sample."""
        return compiled_ns / self.compiled.batch_size * self.eager.batch_size / eager_ns

    @property
    def measured(self) -> float:
        """Return the measured ratio."""
        return self.ratio(self.eager.value_ns, self.compiled.value_ns)


def read_records(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, which may be compressed."""
    text = path.read_bytes()
    text = gzip.decompress(text) if path.suffix == ".gz" else text
    return list(csv.DictReader(text.decode("utf-8-sig").splitlines()))


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a table; rows of unknown workloads or without a time are left out."""
    records = read_records(path)
    if records and "batch_eager" in records[0]:
        return [_pair_in_row(record) for record in records]
    return list(_pairs_of_rows(records))


def _row(record: Record, **given: str) -> MeasuredRow:
    cells = {**record, **given}
    phase = TimedPhase(cells.get("phase") or "inference")
    optimizer = (
        (cells.get("optimizer") or "none").split()[0] if phase is TimedPhase.TRAIN else "none"
    )
    return MeasuredRow(
        case_id=f"{cells.get('case_id') or cells.get('pair_id')} {cells['compile']}",
        source=cells.get("source", ""),
        workload=cells["workload"],
        # A table that does not name the variant means the common one.
        device={"V100 (variant not named)": "V100 SXM2 16GB"}.get(cells["device"], cells["device"]),
        num_devices=1,
        precision=NumberFormat(cells["precision"]),
        batch_size=int(cells["batch_size"]),
        phase=phase,
        optimizer=optimizer,
        h2d="none",
        host=cells.get("host", ""),
        framework=cells["framework"],
        value_ms=float(cells["value_ms"]),
        split="",
        note="",
        compile=cells["compile"],
    )


def _pair_in_row(record: Record) -> Pair:
    eager, compiled = (
        _row(
            record, compile=mode, batch_size=record[f"batch_{kind}"], value_ms=record[f"{kind}_ms"]
        )
        for kind, mode in (("eager", "none"), ("compiled", "default"))
    )
    return Pair(eager=eager, compiled=compiled)


def _pairs_of_rows(records: Sequence[Record]) -> Iterator[Pair]:
    groups: defaultdict[tuple[str, ...], list[MeasuredRow]] = defaultdict(list)
    same = ("workload", "device", "precision", "phase", "framework", "batch_size", "pair_group")
    for record in records:
        if record["workload"].startswith(_LIBRARIES) and record["value_ms"]:
            row = _row(record, compile=record["compile"] or "none")
            groups[tuple(record.get(key, "") for key in same)].append(row)
    for rows in groups.values():
        eager = [row for row in rows if row.compile == "none"]
        for row in rows:
            if eager and row.compile != "none":
                yield Pair(eager=eager[0], compiled=row)


def _known(pairs: Sequence[Pair]) -> list[Pair]:
    known: list[Pair] = []
    for pair in pairs:
        try:
            find_device(pair.eager.device)
        except BreakevenError:
            continue
        known.append(pair)
    return known


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures of each table; 1 where none has a pair that is predicted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    parser.add_argument("--sample", type=int, metavar="N", help="so many pairs of each, seed 1")
    parser.add_argument("--rows", action="store_true", help="print each pair")
    parser.add_argument("--fast-norm", action="store_true", help="in networks of timm; see above")
    args = parser.parse_args(argv)
    predictor = ShippedPredictor(progress=SilentProgress())
    num_predicted = 0
    for table in args.tables:
        pairs = _known(read_pairs(table))
        if args.sample and len(pairs) > args.sample:
            pairs = random.Random(1).sample(pairs, args.sample)
        rows = [
            replace(
                row,
                case_id=f"{number} {row.compile}",
                workload=with_fast_norm(row.workload) if args.fast_norm else row.workload,
            )
            for number, pair in enumerate(pairs)
            for row in (pair.eager, pair.compiled)
        ]
        outcomes = predictor.predict(rows)
        errors: list[float] = []
        num_right = 0
        for pair, eager, compiled in zip(pairs, outcomes[::2], outcomes[1::2], strict=True):
            if not isinstance(eager, RowPrediction) or not isinstance(compiled, RowPrediction):
                continue
            predicted = pair.ratio(eager.estimate.value_ns, compiled.estimate.value_ns)
            errors.append(predicted / pair.measured - 1)
            num_right += (predicted < 1) == (pair.measured < 1)
            if args.rows:
                print(
                    f"{pair.eager.workload:50} {pair.eager.device:16} {pair.compiled.compile:18} "
                    f"measured {pair.measured:.2f} predicted {predicted:.2f}"
                )
        num_predicted += len(errors)
        print(f"{table.name}: {_figures(errors, num_right, len(pairs))}")
    return 0 if num_predicted else 1


def with_fast_norm(workload: str) -> str:
    """Return a workload of which networks of timm normalize in the dtype of autocast."""
    if not workload.startswith("timm:"):
        return workload
    return f"{workload}{'&' if '?' in workload else '?'}fast_norm=1"


def _figures(errors: Sequence[float], num_right: int, num_pairs: int) -> str:
    if not errors:
        return f"none of {num_pairs} pairs is predicted"
    near = sum(abs(error) <= NEAR for error in errors) / len(errors)
    median = statistics.median(abs(math.log1p(error)) for error in errors)
    return (
        f"{len(errors)} of {num_pairs} pairs predicted, within {NEAR:.0%}: {near:.1%}, "
        f"right side of 1: {num_right / len(errors):.1%}, median error {math.expm1(median):.1%}"
    )


if __name__ == "__main__":
    sys.exit(main())

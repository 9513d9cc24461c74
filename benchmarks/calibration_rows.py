"""Choose those rows of timm's tables of measured steps that the calibration learns from.

``python benchmarks/calibration_rows.py TABLE.csv[.gz] ... -o ROWS.csv`` takes one network of each
family, seed 1, by all versions of torch that are asked for: what changes from one to the next is
what this is for. Eager steps in contiguous memory alone; networks of one family repeat each other,
and so do versions between those that changed kernels. Other devices are left to test the result.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

Record = Mapping[str, str]


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, which may be compressed."""
    text = path.read_bytes()
    text = gzip.decompress(text) if path.suffix == ".gz" else text
    return list(csv.DictReader(text.decode("utf-8-sig").splitlines()))


def choose(records: Sequence[Record], *, device: str, versions: Sequence[str]) -> list[Record]:
    """Return the rows of one network of each family, by its column ``family``.

    Networks that most versions were tried with are preferred.
    """
    by_workload: defaultdict[str, list[Record]] = defaultdict(list)
    workloads: defaultdict[str, set[str]] = defaultdict(set)
    for record in records:
        if (
            record["device"] == device
            and record["memory_format"] == "contiguous"
            and (record["compile"] or "none") == "none"
            and record["framework"].split()[1] in versions
        ):
            by_workload[record["workload"]].append(record)
            workloads[record["family"]].add(record["workload"])
    chosen: list[Record] = []
    generator = random.Random(1)
    for _, members in sorted(workloads.items()):
        most = max(len(by_workload[name]) for name in members)
        candidates = sorted(name for name in members if len(by_workload[name]) == most)
        chosen += by_workload[generator.choice(candidates)]
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Write the rows; 1 where there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE.csv")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="ROWS.csv")
    parser.add_argument("--device", default="RTX 3090", help="default: %(default)s")
    parser.add_argument(
        "--versions",
        nargs="+",
        default=["1.11", "1.13", "2.4.0"],
        metavar="VERSION",
        help="of torch (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    tables = [read(table) for table in args.tables]
    chosen = [
        record
        for records in tables
        for record in choose(records, device=args.device, versions=args.versions)
    ]
    if not chosen:
        print("no row is chosen", file=sys.stderr)
        return 1
    columns = list(dict.fromkeys(name for records in tables for name in records[0]))
    with args.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(chosen)
    print(f"{len(chosen)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Small steps on the CPU and on the GPU of one machine, beside what was predicted: run this first.

    python benchmarks/gpu/pairs.py --out DIR
    python benchmarks/gpu/pairs.py --dry-run
    python benchmarks/gpu/pairs.py --out DIR --predict
    python benchmarks/gpu/pairs.py --summary TABLE.csv

A call ends after ``--seconds`` (360); the same command goes on. A dry run lets the CPU stand in for
the GPU, to try the path. ``--predict`` predicts anew what was measured, on any machine.
README.md beside it describes the table.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from run import ROOT, end_command, prepare_path

HERE = Path(__file__).parent
# In the order of their worth; each has a process of its own, and its seconds at most.
STAGES = {
    "gpu": 150.0,
    "cpu": 150.0,
    "first compiled": 90.0,
    "cases": 200.0,
    "compiled": 600.0,
}
# What a stage exits with: it said why it cannot be done, or the time is over. After all else, such
# as a step that ends the process or leaves a broken GPU behind, it goes on in a new process.
CANNOT, TIME_OVER = 3, 4
_MOST_STARTS = 12
_LEAST_S, _GRACE_S = 10.0, 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Do what there is time for; return 0 when nothing is left, 1 when something is."""
    args = _parse(argv)
    prepare_path(args)
    if args.summary:
        _print_summary(args.summary)
        return 0
    stages = {"predict": 600.0} if args.predict else dict(STAGES)
    if args.only:
        stages.pop("first compiled", None)  # they come with the others
    args.until_s = time.time() + args.seconds
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # of `timeout`: as Ctrl-C
    left = list(stages)
    with suppress(KeyboardInterrupt):  # it ends as when its time is over
        for stage, most_s in stages.items():
            if _do(stage, most_s, args):
                left.remove(stage)
    with suppress(FileNotFoundError):  # nothing was measured
        _print_summary(args.out / "pairs.csv")
    print(f"left: {', '.join(left)}; the same command goes on" if left else "nothing is left")
    return 1 if left else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder of pairs.csv and pairs.json")
    parser.add_argument("--seconds", type=float, default=360.0, help="of this call (360)")
    parser.add_argument("--only", metavar="NAME", action="append", help="network or case")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that the machine lacks")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="the CPU stands in for the GPU")
    how.add_argument("--predict", action="store_true", help="predict anew; measure nothing")
    how.add_argument("--summary", type=Path, metavar="TABLE.csv", help="show a table's figures")
    args = parser.parse_args(argv)
    if args.out is None and args.dry_run:
        args.out = Path(tempfile.mkdtemp(prefix="pairs-"))
        print(args.out)
    if args.summary:
        return args
    if args.out is None:
        parser.error("--out DIR is needed")
    if args.dry_run and args.out.resolve().is_relative_to(ROOT / "benchmarks"):
        parser.error("a dry run is no measurement: keep it out of benchmarks")
    return args


def _do(stage: str, most_s: float, args: argparse.Namespace) -> bool:
    """Return whether all of a stage is done.

    Raises:
        SystemExit: It cannot be done here.
    """
    until_s = min(args.until_s, time.time() + most_s)
    command = [sys.executable, str(HERE / "pair_steps.py"), stage, "--out", str(args.out.resolve())]
    command += [option for name in args.only or () for option in ("--only", name)]
    command += ["--dry-run"] if args.dry_run else []
    # Predictions must rest on nothing that was measured of this GPU, nor on its being here.
    env = os.environ | {"BREAKEVEN_CALIBRATIONS": ""}
    if stage in ("cpu", "predict"):
        env |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    for start in range(_MOST_STARTS):
        left_s = until_s - time.time()
        if left_s < _LEAST_S:
            return False
        again = ["--again"] if stage == next(iter(STAGES)) and not start else []
        process = subprocess.Popen(
            [*command, "--until", str(until_s), *again],
            cwd=ROOT,
            env=env,
            start_new_session=True,  # so that all of it can be ended
        )
        try:
            code = process.wait(left_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            code = TIME_OVER
        finally:
            end_command(process)
        if code == CANNOT:
            sys.exit(1)
        if code in (0, TIME_OVER):
            return code == 0
    return False


def _print_summary(table: Path) -> None:
    from summary import pair_lines

    with table.open(newline="", encoding="utf-8") as stream:
        print("\n".join(pair_lines(list(csv.DictReader(stream)))))


if __name__ == "__main__":
    sys.exit(main())

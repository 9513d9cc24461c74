"""Whether a tuned run of a short script is slower than ``python``, from start to end.

Run ``python benchmarks/short_runs.py`` in an environment with breakeven, on a quiet machine. Six
scripts of 20 to 1,128 steps are tuned by the command. Then ``breakeven run`` and ``python`` run
each of them from start to end, in turn; what is shown is the median of both and of their ratios.
It takes some five minutes. ``--keep FOLDER`` keeps the tuned files, and goes on with those there.
Both ways find the modules of Python compiled, as installed ones are.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from breakeven.store import read_tuned

SCRIPTS = Path(__file__).resolve().parent / "short_scripts"
BREAKEVEN = Path(sysconfig.get_path("scripts")) / "breakeven"
MOST_RATIO = 1.02
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the scripts that the command line asks for; 1 if one is slower than python."""
    names = sorted(script.stem for script in SCRIPTS.glob("*.py"))
    parser = argparse.ArgumentParser(description="Time short scripts under breakeven run.")
    parser.add_argument("--only", action="append", choices=names, help="one; may be repeated")
    parser.add_argument("--pairs", type=int, default=7, help="pairs of runs (default: 7)")
    parser.add_argument("--keep", type=Path, help="keep the tuned files in this folder")
    parser.add_argument("--tune-only", action="store_true", help="tune, and time nothing")
    args = parser.parse_args(arguments)
    is_slower = False
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.only or names:
            folder = Path(args.keep or temporary) / name
            _tune(name, folder)
            if args.tune_only:
                continue
            ratio = _compare(name, folder, args.pairs)
            is_slower = is_slower or ratio > MOST_RATIO
    return int(is_slower)


def _tune(name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "breakeven.toml").exists():
        shutil.copy(SCRIPTS / f"{name}.py", folder)
        command = [str(BREAKEVEN), "tune", "-q", f"{name}.py"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def _compare(name: str, folder: Path, num_pairs: int) -> float:
    """Print what a script takes either way, and return how much longer under ``breakeven run``."""
    script = f"{name}.py"
    ways = {"python": [sys.executable, script], "run": [str(BREAKEVEN), "run", "-q", script]}
    took_s: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(num_pairs + 1):
        for way in reversed(ways) if number % 2 else ways:
            begun_s = time.perf_counter()
            subprocess.run(
                ways[way], cwd=folder, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL
            )
            if number:  # the first pair fills the caches of the disk
                took_s[way].append(time.perf_counter() - begun_s)
    ratios = sorted(b / a for a, b in zip(took_s["python"], took_s["run"], strict=True))
    tuned = read_tuned(folder / "breakeven.toml")
    settings = ", ".join(tuned.configuration.changes) or "as the script is"
    print(
        f"{name:<10} python {median(took_s['python']):6.2f} s   run {median(took_s['run']):6.2f} s"
        f"   run/python {median(ratios):5.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})"
        f"   {tuned.evidence.num_steps:,} steps, {settings}",
        flush=True,
    )
    return median(ratios)


if __name__ == "__main__":
    sys.exit(main())

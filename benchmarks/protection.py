"""What the protection of a script's files adds to a check, and to the step that it measures.

    python benchmarks/protection.py
    python benchmarks/protection.py --runs 20 examples/small_cnn.py

Checks a script with its writes in a layer that is thrown away and, in turn, with ``--keep-writes``.
On a machine that is quiet otherwise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

from breakeven.units import NS_PER_S, format_duration

_EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "disc_mlp.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Print both times, with and without."""
    parser = argparse.ArgumentParser(prog="python benchmarks/protection.py", description=__doc__)
    parser.add_argument("script", nargs="?", type=Path, default=_EXAMPLE)
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="of each kind (10)")
    args = parser.parse_args(argv)
    pairs = [(_check(args.script), _check(args.script, "--keep-writes")) for _ in range(args.runs)]
    for name, index in (("check", 0), ("step", 1)):
        protected, real = ([each[index] for each in kind] for kind in zip(*pairs, strict=True))
        # Of neighbours in time, as the machine's speed changes over the whole.
        low, added, high = quantiles((a - b for a, b in zip(protected, real, strict=True)), n=4)
        ratio = median(a / b for a, b in zip(protected, real, strict=True))
        print(
            f"{name:6} {format_duration(median(protected))}, with --keep-writes "
            f"{format_duration(median(real))}: {added / NS_PER_S:+.6f} s "
            f"(quartiles {low / NS_PER_S:+.6f}, {high / NS_PER_S:+.6f}), ratio {ratio:.3f}"
        )
    return 0


def _check(script: Path, *options: str) -> tuple[float, float]:
    """Return how long a check took, and the step that it measured, both in nanoseconds."""
    begun_s = time.monotonic()
    command = [sys.executable, "-m", "breakeven", "check", str(script), "--json", "-q", *options]
    answer = subprocess.run(command, capture_output=True, check=True, text=True)
    took_ns = (time.monotonic() - begun_s) * NS_PER_S
    (cpu, *_) = (r for r in json.loads(answer.stdout)["results"] if r["kind"] == "cpu")
    return took_ns, cpu["step_ns"]


if __name__ == "__main__":
    sys.exit(main())

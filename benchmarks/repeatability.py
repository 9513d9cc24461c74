"""How much two explanations of the same script differ on the same machine.

    python benchmarks/repeatability.py [SCRIPT ...] [--runs 5] [--device "RTX 4090"]

Each script is explained several times in a row, each time from the start. Shown are the steps that
were predicted and measured, how far the predicted ones are from their middle, and the first finding
of each run. Ends with 1 if a step is off by more than a tenth, or the first findings differ. By
default five scripts, of which some need transformers, lightning, stable-baselines3 or pillow; one
that cannot be explained is named. Let the machine be quiet.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from breakeven.units import format_duration, format_percent

ROOT = Path(__file__).resolve().parents[1]
BREAKEVEN = Path(sysconfig.get_path("scripts")) / "breakeven"
SCRIPTS = (
    "benchmarks/frameworks/bert_trainer.py",
    "benchmarks/frameworks/lightning_mlp.py",
    "tests/cases/00_lenet_two_workers.py",
    "tests/e2e/scripts/sb3_ppo.py",
    "examples/disc_mlp.py",
)
MOST_OFF = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Explain each script and print what differs."""
    parser = argparse.ArgumentParser(prog="python benchmarks/repeatability.py")
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="default: five of this folder")
    parser.add_argument("--runs", type=int, default=5, help="explanations of each (5)")
    parser.add_argument("--device", default="RTX 4090", help="GPU to predict (RTX 4090)")
    options = parser.parse_args(argv)
    results = [
        _repeats(script, options.runs, options.device)
        for script in options.scripts or [str(ROOT / script) for script in SCRIPTS]
    ]
    return 0 if all(results) else 1


def _repeats(script: str, num_runs: int, device: str) -> bool:
    """Print the explanations of a script; return whether they are alike."""
    command = [str(BREAKEVEN), "explain", script, "--device", device, "--json", "--quiet"]
    found: list[dict[str, Any]] = []
    for _ in range(num_runs):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{script}: {done.stderr.strip()}", flush=True)
            return False
        found.append(json.loads(done.stdout))
    steps_ns = [report["step_ns"] for report in found]
    middle_ns = (max(steps_ns) + min(steps_ns)) / 2
    off = (max(steps_ns) - middle_ns) / middle_ns
    firsts = [_first_finding(report) for report in found]
    print(script)
    print(f"    {device}: {_listed(steps_ns)}: ±{format_percent(off)}")
    print(f"    this CPU: {_listed([report['results'][0]['step_ns'] for report in found])}")
    print(f"    first finding: {', '.join(dict.fromkeys(firsts))}", flush=True)
    return off <= MOST_OFF and len(set(firsts)) == 1


def _first_finding(report: dict[str, Any]) -> str:
    first = next(iter(report["findings"]), None)
    return "none" if first is None else f"{first['code']} at line {first['line']}"


def _listed(steps_ns: Sequence[float]) -> str:
    return ", ".join(format_duration(step_ns) for step_ns in steps_ns)


if __name__ == "__main__":
    sys.exit(main())

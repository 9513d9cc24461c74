"""How long breakeven takes, and how much of that is the user's own script.

Run ``python benchmarks/check_speed.py`` in an environment with breakeven; docs/speed.md explains
the lines. It takes a few minutes, most of them for ResNet-50 on the CPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from simulated_step import NUM_BATCH_SIZES, NUM_DEVICES, simulate_sweep

from breakeven.units import NS_PER_S, format_duration

ROOT = Path(__file__).resolve().parents[1]
DISC_MLP = ROOT / "examples" / "disc_mlp.py"
RESNET50 = ROOT / "benchmarks" / "resnet50.py"
BREAKEVEN = Path(sysconfig.get_path("scripts")) / "breakeven"
NUM_SCRIPT_STEPS = 30

# Ends the script at the given step and prints when each step ended, in seconds of one clock.
_RUN_TO_STEP = """
import json, os, runpy, sys, time
from torch.optim.optimizer import register_optimizer_step_post_hook
num_steps, script, *arguments = sys.argv[1:]
ends = []
def end_step(optimizer, args, kwargs):
    ends.append(time.perf_counter())
    if len(ends) == int(num_steps):
        sys.stderr.write(json.dumps(ends))
        sys.stderr.flush()
        os._exit(0)
register_optimizer_step_post_hook(end_step)
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
"""


def measure_help() -> None:
    """Time the start of the program, and fail if it imports torch."""
    command = [str(BREAKEVEN), "--help"]
    show("breakeven --help, median of 5", _median_s(command, 5))
    traced = _run([sys.executable, "-X", "importtime", "-m", "breakeven", "--help"])
    if re.search(r"\| +torch$", traced.stderr, re.MULTILINE):
        sys.exit("breakeven --help imports torch")
    show_text("... imports torch", "no")


def measure_torch_import() -> None:
    """Time what every check pays at least once, since the script imports torch."""
    show("import torch, median of 3", _median_s([sys.executable, "-c", "import torch"], 3))


def measure_disc() -> None:
    """Time a check of a small script, beside the script by itself."""
    started_s = time.perf_counter()
    _step_ends_s(DISC_MLP, NUM_SCRIPT_STEPS)
    script_s = time.perf_counter() - started_s
    show(f"disc_mlp.py on the CPU, start to step {NUM_SCRIPT_STEPS}", script_s)
    check_s = _check_s(DISC_MLP)
    show("breakeven check examples/disc_mlp.py", check_s)
    show("... beyond the script's own time", check_s - script_s)


def measure_simulation() -> None:
    """Time the arithmetic of a sweep, without any run of a script."""
    started_s = time.perf_counter()
    num_ops = simulate_sweep()
    duration_s = time.perf_counter() - started_s
    name = f"{num_ops} ops, {NUM_DEVICES} devices, {NUM_BATCH_SIZES} batch sizes"
    show(name, duration_s)


def measure_resnet50(traced_batch_sizes: Sequence[int]) -> None:
    """Time a check of ResNet-50, beside two of its CPU steps at each traced batch size."""
    steps_s = 0.0
    for batch_size in traced_batch_sizes:
        # The first step also builds oneDNN's kernels: the two after it are ordinary ones.
        ends_s = _step_ends_s(RESNET50, 3, "--batch", str(batch_size))
        show(f"ResNet-50, two CPU steps, batch {batch_size}", ends_s[2] - ends_s[0])
        steps_s += ends_s[2] - ends_s[0]
    check_s = _check_s(RESNET50, "--batch", str(traced_batch_sizes[0]))
    show(f"breakeven check benchmarks/resnet50.py, batch {traced_batch_sizes[0]}", check_s)
    show("... beyond two CPU steps per traced batch size", check_s - steps_s)


def show(name: str, duration_s: float) -> None:
    """Print one line of the result."""
    show_text(name, format_duration(duration_s * NS_PER_S))


def show_text(name: str, text: str) -> None:
    """Print one line of the result."""
    print(f"{name:<60} {text:>12}", flush=True)


def main() -> None:
    """Run the parts that the command line asks for."""
    parser = argparse.ArgumentParser(description="Print how long breakeven takes.")
    parser.add_argument(
        "--traced-batch-sizes",
        type=int,
        nargs="+",
        default=[16, 32],
        help="batch sizes at which a check of ResNet-50 records a step (default: 16 32)",
    )
    parts: Mapping[str, Callable[[argparse.Namespace], None]] = {
        "help": lambda _: measure_help(),
        "torch": lambda _: measure_torch_import(),
        "disc": lambda _: measure_disc(),
        "simulation": lambda _: measure_simulation(),
        "resnet50": lambda args: measure_resnet50(args.traced_batch_sizes),
    }
    parser.add_argument("--only", choices=parts, help="run one part (default: all)")
    args = parser.parse_args()
    show_text("Python", platform.python_version())
    for name, measure in parts.items():
        if args.only in (None, name):
            measure(args)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr}")
    return done


def _median_s(command: Sequence[str], num_runs: int) -> float:
    durations_s: list[float] = []
    for _ in range(num_runs):
        started_s = time.perf_counter()
        _run(command)
        durations_s.append(time.perf_counter() - started_s)
    return statistics.median(durations_s)


def _step_ends_s(script: Path, num_steps: int, *arguments: str) -> tuple[float, ...]:
    """Return when each of the first steps of ``script`` ended, on the CPU of this machine."""
    with tempfile.TemporaryDirectory() as directory:
        # An example that asks for a GPU could not run here by itself.
        copy = Path(directory) / script.name
        copy.write_text(script.read_text("utf-8").replace(".cuda()", ""), "utf-8")
        done = _run([sys.executable, "-c", _RUN_TO_STEP, str(num_steps), str(copy), *arguments])
    return tuple(json.loads(done.stderr.splitlines()[-1]))


def _check_s(script: Path, *arguments: str) -> float:
    relative = str(script.relative_to(ROOT))
    started_s = time.perf_counter()
    done = _run([str(BREAKEVEN), "check", relative, "--json", "--", *arguments])
    duration_s = time.perf_counter() - started_s
    if not json.loads(done.stdout)["results"]:
        sys.exit(f"the check of {relative} has no results")
    return duration_s


if __name__ == "__main__":
    main()

"""Compile the steps that `run.py` times under `torch.compile` beside each other, before it does.

    python benchmarks/gpu/compile_ahead.py [--seconds 120]

One after the other they take a quarter of an hour, most of it on one core. What Inductor keeps on
the disk makes each a matter of seconds then. Only code is taken from there: kernels that were tried
against each other beside other work are tried again.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from whole_steps import wanted_steps

from breakeven.calibrate.gpu.steps import EAGER, WantedStep, case_of
from breakeven.workloads import step_on_device

# Each has a process that compiles, and a few that it starts for its kernels.
_CORES_PER_STEP = 1.2
_COMPILE_THREADS = "4"


def main(argv: Sequence[str] | None = None) -> int:
    """Compile all that there is time for; return 0 when nothing is left, 1 when something is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="at most (120)")
    parser.add_argument("--only", type=int, help="the step of that number, in this process")
    args = parser.parse_args(argv)
    steps = [step for step in wanted_steps(is_tiny=False) if step.compile != EAGER]
    if args.only is not None:
        _compile(steps[args.only])
        return 0
    begun_s = time.time()
    # Large networks come last in the list, and take longest.
    commands = [(sys.executable, __file__, "--only", str(n)) for n in reversed(range(len(steps)))]
    num_left = compile_beside(commands, args.seconds)
    forget_choices(begun_s)
    print(f"{num_left} left" if num_left else "nothing is left")
    return 1 if num_left else 0


def _compile(step: WantedStep) -> None:
    device = torch.device("cuda", 0)
    started_s = time.monotonic()
    call = step_on_device(case_of(step), step.batch_size, device, compile_mode=step.compile)
    call()
    torch.cuda.synchronize()
    print(f"{step.name}: {time.monotonic() - started_s:.0f} s", flush=True)


def compile_beside(commands: Sequence[Sequence[str]], budget_s: float) -> int:
    """Run commands that compile beside each other; return how many were not done in the time.

    Args:
        commands: Those that take longest first.
        budget_s: What is not done then is ended, with all that it started.
    """
    waiting = list(commands)
    num_beside = max(1, int((os.cpu_count() or 1) / _CORES_PER_STEP))
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": _COMPILE_THREADS} | os.environ
    running: list[subprocess.Popen[bytes]] = []
    num_failed, until_s = 0, time.monotonic() + budget_s
    try:
        while (waiting or running) and time.monotonic() < until_s:
            while waiting and len(running) < num_beside:
                command = waiting.pop(0)
                running.append(subprocess.Popen(command, env=environment, start_new_session=True))
            ended = [process for process in running if process.poll() is not None]
            num_failed += sum(process.returncode != 0 for process in ended)
            running = [process for process in running if process not in ended]
            time.sleep(0.2)
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started too
            process.wait()
    return len(waiting) + len(running) + num_failed


def forget_choices(begun_s: float) -> None:
    """Remove which of several kernels was fastest while all was busy, since then."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    for choice in Path(cache_dir()).rglob("*.best_config"):
        with suppress(FileNotFoundError):
            if choice.stat().st_mtime >= begun_s:
                choice.unlink()


if __name__ == "__main__":
    sys.exit(main())

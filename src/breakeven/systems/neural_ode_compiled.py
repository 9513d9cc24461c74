"""Time the steps of a script with its torch.compile in force, which other measurements ignore.

Started as ``python neural_ode_compiled.py BUDGET_S NUM_THREADS SCRIPT [ARGUMENT ...]``; prints
the measurement as JSON in its last line.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from breakeven.measure import HostClock, StepTimer


class _EnoughError(BaseException):
    """The samples suffice; no handler of the script for errors catches it."""


def main() -> None:
    """Run the script until its step's time is known."""
    budget_s, num_threads, script = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    sys.argv = sys.argv[3:]
    sys.path[0] = str(Path(script).resolve().parent)
    if num_threads:
        torch.set_num_threads(num_threads)
    timer = StepTimer(HostClock(), budget_s)

    def mark(*_: object) -> None:
        if timer.mark(0):
            raise _EnoughError

    register_optimizer_step_post_hook(mark)
    try:
        runpy.run_path(script, run_name="__main__")
    except _EnoughError:
        sys.stdout.flush()
    measurement = timer.measurement()
    if measurement is None:
        sys.exit("it made no two steps")
    sys.stdout.write(msgspec.json.encode(measurement).decode() + "\n")


if __name__ == "__main__":
    main()

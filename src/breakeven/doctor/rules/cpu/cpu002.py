"""CPU002: torch runs more threads than the process has processors.

What it does:
    Compares torch's intra-op threads with the processors that the process may use.

Why it costs time:
    Threads take turns, and those that wait for the last one spin on processors that it needs.

Evidence:
    In public reports steps took 2 to 8 times as long; a GPU starved since its host's threads
    fought for processors.

Fix:
    Leave the number alone: torch takes one thread for each core. In containers set it to what
    the container may use.

    ```python
    torch.set_num_threads(32)
    ```

    ```python
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    ```

Known limits:
    Threads of other libraries and of data loader workers are not counted: torch gives each
    worker one thread.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.rules.cpu.threads import (
    cores_of_run,
    line_of_threads,
    threads_of_run,
)
from breakeven.doctor.rules.cpu.trials import as_measured, faster_trial, measured_gain
from breakeven.simulate import Side

CAUSE = "THREADS_OVER"


def detect(case: Case) -> Found:
    num_threads, num_cores = threads_of_run(case), cores_of_run(case)
    if num_cores < 1 or num_threads <= num_cores:
        return
    cpu = case.cpu
    fewer = () if cpu is None else (t for t in cpu.trials if 0 < t.num_threads < num_threads)
    trial = None if cpu is None else faster_trial(cpu, fewer)
    measured = f"; {as_measured(cpu, trial)}" if cpu is not None and trial is not None else ""
    yield Occurrence(
        title=f"{num_threads} threads share {num_cores} processors",
        fix=f"at most {num_cores} threads: torch.set_num_threads, OMP_NUM_THREADS",
        evidence=f"torch has {num_threads} intra-op threads, the process may use "
        f"{num_cores} processors{measured}",
        location=line_of_threads(case),
        gain=measured_gain(cpu, trial) if cpu is not None and trial is not None else None,
        side=Side.CPU,
    )

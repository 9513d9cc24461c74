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
from breakeven.doctor.step_times import faster_trial, line_of_threads, threads_and_cores
from breakeven.simulate import Side

CAUSE = "THREADS_OVER"


def detect(case: Case) -> Found:
    num_threads, num_cores = threads_and_cores(case)
    if not 1 <= num_cores < num_threads:
        return
    faster = faster_trial(case.cpu, lambda trial: 0 < trial.num_threads < num_threads)
    yield Occurrence(
        title=f"{num_threads} threads share {num_cores} processors",
        fix=f"at most {num_cores} threads: torch.set_num_threads, OMP_NUM_THREADS",
        evidence=f"torch has {num_threads} intra-op threads, the process may use "
        f"{num_cores} processors{f'; {faster.evidence}' if faster else ''}",
        location=line_of_threads(case),
        gain=faster.gain if faster else None,
        side=Side.CPU,
    )

"""CPU001: the step on the CPU is faster with fewer threads.

What it does:
    Compares the step as it is with the same step on fewer intra-op threads, both measured on
    this machine.

Why it costs time:
    torch splits each large enough operator over its threads, and waits for the last of them.
    For small operators waking and waiting takes longer than the work.

Evidence:
    In public reports a step went from 3.1 to 0.4 s on 96 cores, another to half.

Fix:
    Use fewer threads, 1 to 4 for small models.

    ```python
    train(model)
    ```

    ```python
    torch.set_num_threads(1)
    train(model)
    ```

Known limits:
    Only a few numbers of threads are tried, on this machine and under its present load.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.step_times import faster_trial, line_of_threads, threads_and_cores
from breakeven.simulate import Side

CAUSE = "THREADS_SMALL"


def detect(case: Case) -> Found:
    num_threads, num_cores = threads_and_cores(case)
    faster = faster_trial(case.cpu, lambda trial: 0 < trial.num_threads < num_threads)
    if num_threads > num_cores or faster is None:
        return
    fewer = faster.trial.num_threads
    yield Occurrence(
        title=f"on the CPU {fewer} of {num_threads} threads are faster",
        fix=f"torch.set_num_threads({fewer}) where it trains on the CPU",
        evidence=faster.evidence,
        location=line_of_threads(case),
        gain=faster.gain,
        side=Side.CPU,
    )

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
from breakeven.doctor.rules.cpu.threads import (
    cores_of_run,
    line_of_threads,
    threads_of_run,
)
from breakeven.doctor.rules.cpu.trials import as_measured, faster_trial, measured_gain
from breakeven.simulate import Side

CAUSE = "THREADS_SMALL"


def detect(case: Case) -> Found:
    cpu = case.cpu
    if cpu is None or threads_of_run(case) > cores_of_run(case):
        return
    trial = faster_trial(cpu, (t for t in cpu.trials if 0 < t.num_threads < cpu.num_threads))
    if trial is None:
        return
    yield Occurrence(
        title=f"on the CPU {trial.num_threads} of {cpu.num_threads} threads are faster",
        fix=f"torch.set_num_threads({trial.num_threads}) where it trains on the CPU",
        evidence=as_measured(cpu, trial),
        location=line_of_threads(case),
        gain=measured_gain(cpu, trial),
        side=Side.CPU,
    )

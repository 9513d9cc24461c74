"""LOAD004: the data loader has more workers than there are processors.

What it does:
    Finds a ``DataLoader`` with more worker processes than the machine has processors; at least
    four are assumed, for the host of a GPU is rarely smaller.

Why it costs time:
    Workers then take turns with each other and with the training process, which issues the
    work of the GPU. Each also holds its copy of Python, torch and the prefetched batches.

Evidence:
    104 workers on 23 processors froze, and 48 were slower than 24, in public reports. torch
    warns of it.

Fix:
    Two to eight workers; measure before taking more.

    ```python
    loader = DataLoader(data, batch_size=64, num_workers=64)
    ```

    ```python
    loader = DataLoader(data, batch_size=64, num_workers=min(8, os.cpu_count() or 1))
    ```

Known limits:
    No gain is shown: how much the workers are in each other's way is not simulated. The
    machine that trains may have more processors than this one.
"""

from __future__ import annotations

from breakeven.doctor.loading import settings_location
from breakeven.doctor.rule import Case, Found, Occurrence

CAUSE = "LOADER_TOO_MANY"

# Hosts of GPUs have at least this many processors, whatever the machine here has.
_FEWEST_CORES = 4


def detect(case: Case) -> Found:
    cores = case.facts.num_cores
    for loader in case.facts.loaders:
        if cores and loader.num_workers > max(cores, _FEWEST_CORES):
            yield Occurrence(
                title=f"{loader.num_workers} worker processes on {cores} processors",
                fix="DataLoader(..., num_workers=min(8, os.cpu_count() or 1))",
                evidence=f"num_workers={loader.num_workers}; the process may use {cores} "
                "processors here",
                location=settings_location(case, loader),
            )

"""SYNC002: the script waits for the device, or collects garbage, in every step.

What it does:
    Finds ``torch.cuda.synchronize()``, ``torch.cuda.empty_cache()`` and ``gc.collect()``
    within the step.

Why it costs time:
    The first two wait until the device is idle. ``empty_cache`` also gives memory back that the
    next step asks for again. A collection looks at every object of torch and of the script
    while nothing is issued.

Evidence:
    In public reports loops gained 10 to 30 % when the calls were removed; one collection takes
    35 to 100 ms once torch is imported.

Fix:
    Remove them: the allocator reuses memory by itself, and memory that runs out is not helped
    by them. They are needed around a clock only.

    ```python
    for batch in loader:
        train_step(batch)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        gc.collect()
    ```

    ```python
    for batch in loader:
        train_step(batch)
    ```

Known limits:
    What allocating the memory again costs after ``empty_cache`` is not part of the gain shown.
    A wait beside the reading of a clock is taken as meant.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found
from breakeven.doctor.waits import Wait, by_waiting_line, waits_of

CAUSE = "SYNC_EXPLICIT"


def detect(case: Case) -> Found:
    yield from by_waiting_line(
        case,
        waits_of(case, Wait.EXPLICIT),
        title="the script waits for the GPU explicitly {often}",
        fix="remove torch.cuda.synchronize() and empty_cache() from the loop",
    )
    yield from by_waiting_line(
        case,
        case.works("gc"),
        title="the script collects garbage {often}",
        fix="remove gc.collect() from the loop, or call it once per epoch",
    )

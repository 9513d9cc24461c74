"""SYNC005: Python branches on a value of the device in every step.

What it does:
    Finds lines that ask for the truth of a device tensor: ``if torch.isnan(loss)``,
    ``if mask.any()``, ``while error > tolerance``, ``assert (x >= 0).all()``.

Why it costs time:
    Python has to know the answer to go on, so the host waits until the device has computed it
    and issues nothing in the meantime.

Evidence:
    One large training code removed 104 of 142 waits per iteration in public reports, most of
    them such tests.

Fix:
    Let the device decide, or test every hundredth step.

    ```python
    if torch.isnan(loss).any():
        continue
    ```

    ```python
    loss = torch.where(torch.isnan(loss), torch.zeros_like(loss), loss)
    ```

Known limits:
    A solver that iterates until it has converged needs its test; test every few iterations.
    The gain shown is that of the wait alone.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found
from breakeven.doctor.waits import Wait, by_waiting_line, waits_of

CAUSE = "SYNC_BRANCH"


def detect(case: Case) -> Found:
    return by_waiting_line(
        case,
        waits_of(case, Wait.TRUTH),
        title="Python branches on a value of the GPU {often}",
        fix="decide on the GPU with torch.where, or test every n-th step",
        is_by_use=True,
    )

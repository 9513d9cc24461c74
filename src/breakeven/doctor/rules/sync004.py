"""SYNC004: the host reads whole tensors from the device in every step.

What it does:
    Finds ``.cpu()``, ``.numpy()``, ``.tolist()`` and copies into host tensors within the step,
    as metrics make them, and the reads of metrics libraries.

Why it costs time:
    The host waits until the device has computed the tensor, and then for the copy.

Evidence:
    Metrics that moved predictions to NumPy in each step took a fifth of the training time in
    public reports.

Fix:
    Count on the device and read once per epoch.

    ```python
    hits += (logits.argmax(1).cpu().numpy() == labels.cpu().numpy()).sum()
    ```

    ```python
    hits += (logits.argmax(1) == labels).sum()  # a tensor; hits.item() after the epoch
    ```

Known limits:
    What the metrics compute on the host afterwards is not part of the gain shown.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found
from breakeven.doctor.waits import Wait, by_waiting_line, waits_of

CAUSE = "SYNC_METRICS"


def detect(case: Case) -> Found:
    return by_waiting_line(
        case,
        waits_of(case, Wait.TENSOR),
        title="the host reads a tensor from the GPU {often}",
        fix="compute metrics on the GPU and read them once per epoch",
        is_by_use=True,
    )

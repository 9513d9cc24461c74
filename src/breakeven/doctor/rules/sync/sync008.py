"""SYNC008: weights, gradients or images are logged in every step.

What it does:
    Finds lines that read one parameter or gradient after another to the host, calls of
    ``add_histogram`` and its kin within the step, and whole tensors that are read to be
    written to a file or drawn: ``np.save``, ``save_image``, ``plt.imshow``.

Why it costs time:
    Each read is a wait and a copy, and the histogram is computed on the host.

Evidence:
    Between 10 % of the step and ten times the step in public reports.

Fix:
    Log every n-th step.

    ```python
    for name, p in model.named_parameters():
        writer.add_histogram(name, p.detach().cpu(), step)
    ```

    ```python
    if step % 500 == 0:
        for name, p in model.named_parameters():
            writer.add_histogram(name, p.detach().cpu(), step)
    ```

Known limits:
    Writing to the disk later is not part of the gain shown.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Occurrence
from breakeven.doctor.rules.sync.waits import occurrences
from breakeven.doctor.sync_owner import Wait, waits_of
from breakeven.trace import HostWork

CAUSE = "LOG_HEAVY"


def detect(case: Case) -> tuple[Occurrence, ...]:
    logged = [
        index
        for index, event in enumerate(case.trace.events)
        if isinstance(event, HostWork) and event.kind == "log"
    ]
    return occurrences(
        case,
        sorted((*waits_of(case, Wait.LOG, Wait.SAVED), *logged)),
        title="weights, gradients or images are logged {often}",
        fix="log them every n-th step",
    )

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

from breakeven.doctor.rule import Case, Found
from breakeven.doctor.waits import Wait, by_waiting_line, waits_of

CAUSE = "LOG_HEAVY"


def detect(case: Case) -> Found:
    return by_waiting_line(
        case,
        sorted((*waits_of(case, Wait.LOG, Wait.SAVED), *case.works("log"))),
        title="weights, gradients or images are logged {often}",
        fix="log them every n-th step",
    )

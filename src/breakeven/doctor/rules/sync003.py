"""SYNC003: the size of a result depends on values.

What it does:
    Finds ``nonzero``, ``x[mask]``, ``masked_select``, ``unique``, ``torch.where(mask)``,
    ``repeat_interleave`` by a tensor, ``one_hot`` without a number of classes, and other
    operators whose result is as large as the data says. The backward pass of ``x[mask]``
    counts again and is part of the same finding.

Why it costs time:
    To allocate the result the host must know its size, so it waits for the device to count.

Evidence:
    In public reports losses with boolean masks gained 5 to 20 % of the step, some 3 ms, when
    rewritten; one large training code removed 104 of 142 waits per iteration in this way.

Fix:
    Keep sizes fixed: ``torch.where``, weights of 0, ``ignore_index``, a top-k of fixed size,
    ``one_hot(x, num_classes)``, ``repeat_interleave(..., output_size=n)``.

    ```python
    loss = F.cross_entropy(logits[mask], labels[mask])
    ```

    ```python
    loss = F.cross_entropy(logits, torch.where(mask, labels, -100), ignore_index=-100)
    ```

Known limits:
    The gain shown is that of the wait alone; the rewritten operators may do more or less work.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found
from breakeven.doctor.waits import Wait, by_waiting_line, waits_of

CAUSE = "SYNC_SHAPE"


def detect(case: Case) -> Found:
    return by_waiting_line(
        case,
        waits_of(case, Wait.SIZE),
        title="the size of a result depends on values, so the host waits for the GPU {often}",
        fix="keep sizes fixed: torch.where, weights of 0, ignore_index instead of a mask",
    )

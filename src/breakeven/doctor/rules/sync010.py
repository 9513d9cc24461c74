"""SYNC010: a transformer compares its mask with the causal one.

What it does:
    Finds the test by which ``nn.Transformer`` and ``nn.TransformerEncoder`` find out whether
    the mask that they are given is the causal one.

Why it costs time:
    With ``is_causal`` left at None they build a causal mask, compare, and wait for the result:
    a wait and three operators per forward pass that nobody wrote.

Evidence:
    The source of ``torch.nn.modules.transformer``: ``bool((mask == causal).all())``.

Fix:
    Say what the mask is.

    ```python
    out = encoder(x, mask=mask)
    ```

    ```python
    out = encoder(x, mask=mask, is_causal=True)
    ```

Known limits:
    The gain shown is that of the wait alone. ``is_causal=False`` for any other mask.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found
from breakeven.doctor.waits import Wait, by_waiting_line, waits_of

CAUSE = "SYNC_BRANCH"


def detect(case: Case) -> Found:
    return by_waiting_line(
        case,
        waits_of(case, Wait.CAUSAL_MASK),
        title="a transformer compares its mask with the causal one {often}",
        fix="pass is_causal=True with a causal mask, is_causal=False with any other",
    )

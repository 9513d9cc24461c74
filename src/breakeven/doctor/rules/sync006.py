"""SYNC006: norms are read back parameter by parameter.

What it does:
    Finds lines that read the norm of one parameter or gradient after another:
    ``total += p.grad.norm().item() ** 2``; and the test for infinite norms of
    ``clip_grad_norm_(..., error_if_nonfinite=True)``.

Why it costs time:
    One wait for each parameter: the host and the device take turns, tensor by tensor.

Evidence:
    In public reports clipping 1,000 tensors took 9.8 ms with a wait for each, and 2.2 ms
    without.

Fix:
    ``torch.nn.utils.clip_grad_norm_`` computes all norms in a few launches and returns the
    total as a tensor; read that every n-th step.

    ```python
    total = sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5
    ```

    ```python
    grads = [p.grad for p in model.parameters()]
    total = torch.nn.utils.get_total_norm(grads)
    ```

Known limits:
    The gain shown is that of the waits alone; the norms in one call save launches besides.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found
from breakeven.doctor.waits import Wait, by_waiting_line, waits_of

CAUSE = "SYNC_CLIP"


def detect(case: Case) -> Found:
    return by_waiting_line(
        case,
        waits_of(case, Wait.NORMS),
        title="the host reads norms of parameters or gradients {often}",
        fix="torch.nn.utils.clip_grad_norm_ or get_total_norm, and read the total every n-th step",
    )

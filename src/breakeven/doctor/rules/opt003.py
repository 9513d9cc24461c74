"""OPT003: gradients are set to zero instead of being dropped.

What it does:
    Finds ``zero_grad(set_to_none=False)`` and ``grad.zero_()`` in the step.

Why it costs time:
    All gradients are written with zeros, and the backward pass reads them to add its own.
    Dropped gradients are simply replaced.

Evidence:
    torch changed its default to dropping them in version 2.0 for this reason.

Fix:
    ``optimizer.zero_grad()``.

    ```python
    optimizer.zero_grad(set_to_none=False)
    ```

    ```python
    optimizer.zero_grad()
    ```

Known limits:
    Code that reads ``p.grad`` of parameters without a gradient has to expect None. Parameters
    that no loss reaches are no longer updated by momentum or decay.
"""

from __future__ import annotations

from breakeven.doctor.events import ZEROING, base_name, gradients_of, op_at
from breakeven.doctor.rule import Case, Found, Occurrence, by_line, without
from breakeven.trace import Op, Phase

CAUSE = "ZERO_GRAD"

# Setting so few gradients to zero costs nothing.
_MIN_GRADIENTS = 4


def detect(case: Case) -> Found:
    gradients = gradients_of(case.trace)
    zeroing = [
        index
        for index, op in case.each_on_device()
        if base_name(op) in ZEROING and {tensor.storage for tensor in op.inputs} & gradients
    ]
    for location, events in by_line(case.trace, zeroing):
        kept = {tensor.storage for index in events for tensor in op_at(case.trace, index).inputs}
        if len(kept) < _MIN_GRADIENTS:
            continue
        # Autograd adds into a gradient that is there, and hands over its own where there is none.
        added = tuple(
            index
            for index, op in case.each(Op)
            if op.phase is Phase.BACKWARD
            and base_name(op) == "add_"
            and op.inputs[0].storage in kept
        )
        yield Occurrence(
            title=f"{len(kept)} gradients are set to zero, and added to, instead of dropped",
            fix="optimizer.zero_grad(), which drops them: set_to_none=True is the default",
            evidence=f"{len(events)} operators write zeros to gradients, {len(added)} add to them",
            location=location,
            events=events + added,
            edit=without(events + added),
        )

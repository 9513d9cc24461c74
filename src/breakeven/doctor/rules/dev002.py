"""DEV002: the script has a GPU at hand and does not use it.

What it does:
    Finds lines that move a tensor and drop the result (``x.to(device)`` returns a copy), a
    chosen device that nothing uses, and scripts that ask for a GPU and run nothing on it.

Why it costs time:
    A GPU would be paid for and stay idle.

Evidence:
    Users reported in public trainings that took days, with a GPU in the machine, because
    ``model.to(device)`` was missing.

Fix:
    ``model.to(device)`` before the optimizer is made, and the batch in the loop; assign what
    ``.to`` returns for a tensor.

    ```python
    device = torch.device("cuda")
    for x, y in loader:
        x.to(device)
        loss = criterion(model(x), y)
    ```

    ```python
    device = torch.device("cuda")
    model.to(device)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = criterion(model(x), y)
    ```

Known limits:
    A script that never mentions a GPU, or that an option keeps on the CPU, is
    taken as meant. Predictions for GPUs are made as if model and batches were moved.
"""

from __future__ import annotations

from breakeven.doctor.device_source import (
    chooses_gpu,
    compares_devices,
    discarded_moves,
    forced_to_cpu,
    made_at,
    mentions_gpu,
    unused_choices,
)
from breakeven.doctor.rule import Case, Found, Occurrence

CAUSE = "NOT_ON_GPU"

_MOVE = "model.to(device) before the optimizer is made, batch.to(device) in the loop"


def detect(case: Case) -> Found:
    is_never = case.is_never_on_device
    dropped = list(discarded_moves(case.sources)) if is_never or case.trace.faults else []
    for location in dropped:
        yield Occurrence(
            title="a tensor is moved to the GPU and the result dropped: the tensor stays where it "
            "is",
            fix="assign it: x = x.to(device)",
            evidence="the statement is a call of .to() or .cuda() alone",
            location=location,
            share_fraction=0.0,
        )
    if not is_never:
        return
    choice = next(iter(unused_choices(case.sources)), None)
    if choice is not None:
        calls = case.facts.model_calls
        yield Occurrence(
            title="a GPU is chosen, and nothing is ever moved to it",
            fix=_MOVE,
            evidence="no operator of the step runs on the GPU, and nothing uses what line "
            f"{choice.line} chooses",
            location=(made_at(case.sources, calls[0].model) if calls else None) or choice,
            share_fraction=0.0,
        )
    elif not dropped and _is_at_fault(case):
        yield Occurrence(
            title="the script never moves its model to a GPU",
            fix=_MOVE,
            evidence="no operator of the step runs on the GPU",
            location=next(forced_to_cpu(case.sources), None),
            share_fraction=0.0,
        )


def _is_at_fault(case: Case) -> bool:
    """Return whether a script without a GPU meant to use one; unknown files may have."""
    if not case.sources.files:
        return True
    # A comparison that begins with the CPU is cut off before it comes to the GPU.
    is_meant = chooses_gpu(case.sources) or compares_devices(case.sources)
    return mentions_gpu(case.sources) and not is_meant

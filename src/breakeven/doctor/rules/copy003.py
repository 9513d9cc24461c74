"""COPY003: numbers of Python become a tensor of the device in every step.

What it does:
    Finds tensors of up to 64 numbers, or of a list of Python, that the step makes and copies to
    the device: ``torch.tensor(0.1).to(device)``, ``torch.tensor([1, 0], device=device)``.

Why it costs time:
    Building a tensor from Python data and copying it from pageable memory takes the host longer
    than a kernel that has the number as its argument, and the copy waits for the device.

Evidence:
    17 % of a training on a T4 was spent in ``torch.tensor`` in a public report.

Fix:
    Operators take Python numbers as they are. A constant belongs into a buffer, a number that
    has to be a tensor is filled in on the device.

    ```python
    loss = loss * torch.tensor(0.5).to(device)
    ```

    ```python
    loss = loss * 0.5  # or torch.full((), 0.5, device=device)
    ```

Known limits:
    A list that is new in every step has to be copied somehow: pin it, or compute it on the
    device.
"""

from __future__ import annotations

from breakeven.doctor.copies import makers_of, seen_copies, uploaded
from breakeven.doctor.crossings import Upload
from breakeven.doctor.rule import Case, Found, Occurrence, by_line, times_per_step, without

CAUSE = "H2D_SCALAR"


def detect(case: Case) -> Found:
    for location, copies in by_line(case.trace, uploaded(case, Upload.SCALARS)):
        events = (*makers_of(case.trace, copies), *copies)
        yield Occurrence(
            title=f"numbers of Python become a tensor of the GPU {times_per_step(len(copies))}",
            fix="use the Python number itself, a buffer, or torch.full((), x, device=...)",
            evidence=seen_copies(case, copies),
            location=location,
            events=events,
            edit=without(events),
        )

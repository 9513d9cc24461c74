"""COPY002: a tensor is made on the host and copied to the device in every step.

What it does:
    Finds copies to the device of a tensor that operators on the host made in the same step
    out of nothing but sizes and Python numbers: noise, masks, positions, targets; and of
    indices on the host that choose from a tensor of the device.

Why it costs time:
    The host computes it slower than the device would, and waits for the copy.

Evidence:
    From 7 % of the step to most of a call in public reports.

Fix:
    Make it where it is used; keep constants in a buffer (``register_buffer``).

    ```python
    noise = torch.randn(x.shape).to(device)
    ```

    ```python
    noise = torch.randn(x.shape, device=x.device)
    ```

Known limits:
    Random numbers differ between the generators of host and device.
"""

from __future__ import annotations

from breakeven.doctor.copies import makers_of, on_device, seen_copies, uploaded
from breakeven.doctor.crossings import Upload
from breakeven.doctor.rule import Case, Found, Occurrence, by_line, changed, times_per_step

CAUSE = "H2D_CREATE"

_MADE = {
    Upload.CREATED: (
        "a tensor is made on the host and copied to the GPU",
        "make it on the GPU (device=...), or keep it in a buffer",
    ),
    Upload.INDEX: (
        "an index on the host chooses from a tensor of the GPU and is copied",
        "make the index on the GPU: torch.randperm(n, device=...)",
    ),
}


def detect(case: Case) -> Found:
    for kind, (title, fix) in _MADE.items():
        for location, events in by_line(case.trace, uploaded(case, kind)):
            makers = makers_of(case.trace, events)
            moved = {index: on_device(case.trace.events[index]) for index in makers}
            yield Occurrence(
                title=f"{title} {times_per_step(len(events))}",
                fix=fix,
                evidence=seen_copies(case, events),
                location=location,
                events=tuple(sorted((*makers, *events))),
                edit=changed(moved, gone=events),
            )

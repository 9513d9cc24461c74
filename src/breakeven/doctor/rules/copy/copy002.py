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

from breakeven.doctor.copy_edits import on_device
from breakeven.doctor.copy_owner import Upload
from breakeven.doctor.rule import Case, Occurrence, by_line, times_per_step
from breakeven.doctor.rules.copy.owned_copies import makers_of, owned, seen_copies
from breakeven.simulate import Edit
from breakeven.trace import Event

CAUSE = "H2D_CREATE"


def detect(case: Case) -> tuple[Occurrence, ...]:
    return (
        *_made_on_device(
            case,
            owned(case, Upload.CREATED),
            title="a tensor is made on the host and copied to the GPU {often}",
            fix="make it on the GPU (device=...), or keep it in a buffer",
        ),
        *_made_on_device(
            case,
            owned(case, Upload.INDEX),
            title="an index on the host chooses from a tensor of the GPU and is copied {often}",
            fix="make the index on the GPU: torch.randperm(n, device=...)",
        ),
    )


def _made_on_device(
    case: Case, copies: list[int], *, title: str, fix: str
) -> tuple[Occurrence, ...]:
    """Return occurrences whose fix makes the copied tensors on the device from the start."""
    found: list[Occurrence] = []
    for location, events in by_line(case.trace, copies):
        makers = makers_of(case.trace, events)
        moved: dict[int, tuple[Event, ...]] = {
            index: (on_device(case.trace.events[index]),) for index in makers
        }
        found.append(
            Occurrence(
                title=title.format(often=times_per_step(len(events))),
                fix=fix,
                evidence=seen_copies(case, events),
                location=location,
                events=tuple(sorted((*makers, *events))),
                edit=Edit(replaced={**dict.fromkeys(events, ()), **moved}),
            )
        )
    return tuple(found)

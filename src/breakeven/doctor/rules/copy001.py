"""COPY001: the batch is copied from pageable memory, and the host waits for it.

What it does:
    Finds copies from host to device in the step that are not both from pinned memory and
    ``non_blocking=True``.

Why it costs time:
    A pageable copy goes through a buffer of the driver, piece by piece, while the host waits.
    The host issues nothing in that time, and the copy cannot overlap with anything.

Evidence:
    3 to 30 % of the step in public reports; the larger the batch and the shorter the step, the
    more.

Fix:
    Pinned memory and a copy that does not block; both are needed: without pinned memory the
    copy blocks whatever is asked for. A data set that fits the GPU is best copied once, before
    the loop.

    ```python
    loader = DataLoader(data, batch_size=64)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
    ```

    ```python
    loader = DataLoader(data, batch_size=64, pin_memory=True)
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    ```

Known limits:
    Pinning takes time in a thread of the loader, which the gain shown leaves out. Do not call
    ``pin_memory()`` on each batch in the loop: that costs more than it gains. Where a framework
    copies the batch, the line is that of the loader.
"""

from __future__ import annotations

from breakeven.doctor.copies import queued, seen_copies, uploaded
from breakeven.doctor.crossings import Upload, is_by_framework
from breakeven.doctor.rule import Case, Found, Occurrence, by_line, changed, times_per_step
from breakeven.trace import Copy

CAUSE = "H2D_PAGEABLE"

# An observation of a simulator is smaller; no loader could pin it ahead of time.
_MIN_BATCH_BYTES = 64


def detect(case: Case) -> Found:
    copies = dict(case.each(Copy))
    batches = [index for index in uploaded(case, Upload.BATCH) if copies[index].is_blocking]
    if all(copies[index].num_bytes < _MIN_BATCH_BYTES for index in batches):
        return
    theirs = tuple(index for index in batches if is_by_framework(copies[index]))
    found = by_line(case.trace, (index for index in batches if index not in theirs))
    loader = next((loader for loader in case.facts.loaders if not loader.pin_memory), None)
    if theirs and loader is not None:
        found.append((loader.location, theirs))
    for location, events in found:
        often = times_per_step(len(events))
        if all(copies[index].is_pinned for index in events):
            title = f"a batch in pinned memory is copied to the GPU {often} by a copy that blocks"
            source = ""
        else:
            title = f"a batch is copied to the GPU from pageable memory {often}, and the host "
            title += "waits for it"
            source = "pinned memory, as from DataLoader(pin_memory=True), and "
        yield Occurrence(
            title=title,
            fix=f"{source}.to(device, non_blocking=True)",
            evidence=seen_copies(case, events),
            location=location,
            events=events,
            edit=changed({index: queued(copies[index]) for index in events}),
        )

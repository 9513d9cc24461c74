"""LOAD001: the data loader works in the training process, and the GPU waits for it.

What it does:
    Finds a ``DataLoader`` without worker processes whose batches take a tenth of the step or
    more, and a millisecond or more each.

Why it costs time:
    While the training process collects and transforms samples it issues nothing. The faster
    the GPU, the larger that part of the step.

Evidence:
    Two to four times faster training with workers in public reports: 3 to 13 steps per second
    on an RTX 3090, 29 to 16 minutes per run with four workers.

Fix:
    Let workers prepare the next batches while the GPU computes.

    ```python
    loader = DataLoader(images, batch_size=32, shuffle=True)
    ```

    ```python
    loader = DataLoader(
        images, batch_size=32, shuffle=True, num_workers=4, persistent_workers=True
    )
    ```

Known limits:
    The gain shown shares the work between the workers that keep up with the step, at most
    eight and at most the processors of this machine, and lets half a millisecond per batch
    remain for handing it over. Indexing tensors in memory is LOAD002 instead.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from breakeven.doctor.loading import HANDOFF_NS, MOST_WORKERS, Loading, loadings
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.simulate import Edit
from breakeven.trace import HostWork
from breakeven.units import format_duration

CAUSE = "LOADER_WORKERS0"


def detect(case: Case) -> Found:
    for one in loadings(case):
        if one.num_workers or one.is_short or not one.is_in_the_way:
            continue
        # No worker does one indexing faster; indexing sample by sample is LOAD002.
        is_batched = one.loader is not None and one.loader.has_batched_fetch
        if one.is_indexed_by_item or (is_batched and one.is_indexed):
            continue
        yield Occurrence(
            title=f"loading the batch takes {format_duration(one.duration_ns, 2)} of the "
            "training process in every step",
            fix="DataLoader(..., num_workers=4, persistent_workers=True)",
            evidence=one.evidence,
            location=one.location,
            events=one.events,
            edit=_with_workers(case, one),
        )


def _with_workers(case: Case, one: Loading) -> Edit:
    """Return the step with as many workers as hide the loading, or as there can be."""
    most = min(MOST_WORKERS, max(2, case.facts.num_cores or MOST_WORKERS))
    wanted = math.ceil(one.duration_ns / max(1.0, one.hidden_ns))
    num_workers = min(most, max(2, wanted))
    return Edit(
        replaced={
            index: (
                replace(work, num_workers=num_workers),
                replace(work, duration_ns=HANDOFF_NS),
            )
            for index, work in case.each(HostWork)
            if index in one.events
        }
    )

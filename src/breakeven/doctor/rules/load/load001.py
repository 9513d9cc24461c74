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

import msgspec

from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.rules.load.loading import (
    HANDOFF_NS,
    MOST_WORKERS,
    Loading,
    fetch_evidence,
    hidden_ns,
    is_in_the_way,
    is_indexed,
    is_indexed_by_item,
    loadings,
)
from breakeven.simulate import Edit
from breakeven.trace import HostWork
from breakeven.units import format_duration

CAUSE = "LOADER_WORKERS0"


def detect(case: Case) -> Found:
    return tuple(
        Occurrence(
            title=f"loading the batch takes {format_duration(one.duration_ns, 2)} of the "
            "training process in every step",
            fix="DataLoader(..., num_workers=4, persistent_workers=True)",
            evidence=fetch_evidence(one),
            location=one.location,
            events=one.events,
            edit=_with_workers(case, one),
        )
        for one in loadings(case)
        if not one.num_workers
        and one.duration_ns >= 2 * HANDOFF_NS * len(one.events)
        and is_in_the_way(case, one)
        and not is_indexed_by_item(case, one)
        and not _is_one_indexing(case, one)
    )


def _is_one_indexing(case: Case, one: Loading) -> bool:
    """Return whether a batch is one indexing, which no worker does faster."""
    loader = one.loader
    return loader is not None and loader.has_batched_fetch and is_indexed(case, loader)


def _with_workers(case: Case, one: Loading) -> Edit:
    """Return the step with as many workers as hide the loading, or as there can be."""
    most = min(MOST_WORKERS, max(2, case.facts.num_cores or MOST_WORKERS))
    wanted = math.ceil(one.duration_ns / max(1.0, hidden_ns(case, one)))
    num_workers = min(most, max(2, wanted))
    replaced: dict[int, tuple[HostWork, ...]] = {}
    for index in one.events:
        event = case.trace.events[index]
        assert isinstance(event, HostWork)
        replaced[index] = (
            msgspec.structs.replace(event, num_workers=num_workers),
            msgspec.structs.replace(event, duration_ns=HANDOFF_NS),
        )
    return Edit(replaced=replaced)

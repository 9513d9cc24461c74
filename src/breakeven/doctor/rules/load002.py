"""LOAD002: tensors in memory are fetched item by item.

What it does:
    Finds a ``DataLoader`` over tensors in memory (``TensorDataset``, or a data set that only
    indexes) that takes them sample by sample, where this costs a tenth of the step or more.

Why it costs time:
    Each sample costs 3 to 30 µs of Python, and collating puts together again what lay
    side by side before. One indexing call fetches the whole batch.

Evidence:
    Loading became 4 to 100 times faster in public reports when whole batches were indexed.

Fix:
    Index whole batches: shuffle the indices yourself, or let a ``BatchSampler`` be the sampler.

    ```python
    loader = DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True)
    for xb, yb in loader:
        ...
    ```

    ```python
    for rows in torch.randperm(len(x)).split(256):
        xb, yb = x[rows], y[rows]
        ...
    ```

Known limits:
    The gain shown puts one call of 20 µs and a copy at 5 GB/s in the place of the loader.
"""

from __future__ import annotations

from msgspec.structs import replace

from breakeven.doctor.loading import Loading, loadings, settings_location
from breakeven.doctor.rule import Case, Found, Occurrence, changed, without
from breakeven.simulate import Edit
from breakeven.trace import HostWork, Phase
from breakeven.units import format_duration

CAUSE = "LOADER_PER_ITEM"

# What the index call that replaces it costs: the call, and a copy at 5 GB/s; an estimate.
_INDEX_CALL_NS, _GATHER_NS_PER_BYTE = 20_000, 0.2

_FIX = "index whole batches: for rows in torch.randperm(len(x)).split(batch_size)"


def detect(case: Case) -> Found:
    for one in loadings(case):
        if one.is_indexed_by_item and one.is_in_the_way:
            yield Occurrence(
                title=f"tensors in memory are fetched item by item, "
                f"{format_duration(one.duration_ns, 2)} in every step",
                fix=_FIX,
                evidence=one.evidence,
                location=one.location,
                events=one.events,
                edit=_with_one_indexing(case, one),
            )
    # Items of tensors on the device: an operator for each.
    fetched = tuple(index for index, op in case.each_on_device() if op.phase is Phase.DATA)
    loader = next((one for one in case.facts.loaders if not one.has_batched_fetch), None)
    if loader is not None and 1 < loader.batch_size <= len(fetched):
        yield Occurrence(
            title=f"tensors on the GPU are fetched item by item, {len(fetched)} operators in "
            "every step",
            fix=_FIX,
            evidence=f"{len(fetched)} operators fetch a batch of {loader.batch_size}",
            location=settings_location(case, loader),
            events=fetched,
            # One operator for each tensor of the batch remains; a pair of tensors is usual.
            edit=without(fetched[2:]),
        )


def _with_one_indexing(case: Case, one: Loading) -> Edit:
    num_bytes = one.loader.batch_bytes if one.loader else 0
    duration_ns = round(_INDEX_CALL_NS + _GATHER_NS_PER_BYTE * num_bytes)
    return changed(
        {
            index: replace(work, duration_ns=min(work.duration_ns, duration_ns), num_workers=0)
            for index, work in case.each(HostWork)
            if index in one.events
        }
    )

"""COPY004: a data set that fits on the device is copied batch by batch, every epoch anew.

What it does:
    Finds batches that are slices of tensors or NumPy arrays in memory, from a ``DataLoader``
    over them or sliced by hand, and are copied to the device in each step, where all of the
    data takes less than a quarter of the device's memory. What is done to each batch in the
    same way every time (a cast, a mean and a scale) can be done there too.

Why it costs time:
    The same bytes travel again in each epoch, the host waits for them, and collecting a batch
    on the host often takes longer than the step.

Evidence:
    Between 3 % and a factor of 2 in public reports; up to a factor of 39 on an MNIST-like data
    set together with slicing whole batches instead of loading item by item.

Fix:
    Copy the data once, and choose batches on the device.

    ```python
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=256, shuffle=True):
        x, y = x.to(device), y.to(device)
    ```

    ```python
    X, Y = X.to(device), Y.to(device)
    for index in torch.randperm(len(X), device=device).split(256):
        x, y = X[index], Y[index]
    ```

Known limits:
    Data that is changed on the host for each batch (augmentation) is left alone. The gain shown
    counts one gather on the device for each copy that goes away. Where a framework copies the
    batch, the line is that of the loader.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from breakeven.doctor.copy_owner import Upload, is_by_framework, uploads
from breakeven.doctor.events import copy_at
from breakeven.doctor.operators import bare_name
from breakeven.doctor.rule import Case, Occurrence, by_line
from breakeven.doctor.rules.copy.numpy_batches import converted_on_device, numpy_batch
from breakeven.simulate import Edit
from breakeven.trace import Copy, Event, HostWork, Location, Op, Phase, TensorSpec
from breakeven.units import format_bytes

CAUSE = "DATA_NOT_RESIDENT"

# The rest of the memory is for the model, its activations and what the allocator cannot use.
_MEMORY_FRACTION = 0.25
# Taking some samples of a tensor.
_CHOOSING = frozenset({
    "slice", "index", "index_select", "select", "narrow", "split", "split_with_sizes", "chunk",
    "unbind", "gather",
})  # fmt: skip


def detect(case: Case) -> tuple[Occurrence, ...]:
    batches = [index for index, kind in uploads(case).items() if kind is Upload.BATCH]
    loaded = _loaded(case, batches)
    if loaded is not None:
        return (loaded,)
    computed = _computed(case, batches)
    if computed is not None:
        return (computed,)
    held = {index: own for index in batches if (own := _held(case, index)) is not None}
    total = sum(size for _, size in held.values())
    if not held or total > _MEMORY_FRACTION * case.device.memory_bytes:
        return ()
    choosing = tuple(position for position, _ in held.values())
    return (_resident(case, _largest(case, list(held)), tuple(held), total, choosing),)


def _loaded(case: Case, batches: list[int]) -> Occurrence | None:
    """Return the occurrence of loaders over tensors in memory, if all of those fit."""
    loaders = [loader for loader in case.facts.loaders if loader.data_bytes and loader.is_indexed]
    total = sum(loader.data_bytes for loader in loaders)
    if not batches or not loaders or len(loaders) < len(case.facts.loaders):
        return None
    if total > _MEMORY_FRACTION * case.device.memory_bytes:
        return None
    location = _largest(case, batches)
    if any(is_by_framework(copy_at(case.trace, index)) for index in batches):
        location = loaders[0].location
    loading = tuple(
        index
        for index, event in enumerate(case.trace.events)
        if (isinstance(event, HostWork) and event.kind == "data")
        or (isinstance(event, Op) and event.is_on_host and event.phase is Phase.DATA)
    )
    return _resident(case, location, tuple(batches), total, loading)


def _computed(case: Case, batches: list[int]) -> Occurrence | None:
    """Return the occurrence of batches that NumPy takes from arrays in memory, if those fit."""
    made = {index: own for index in batches if (own := numpy_batch(case, index)) is not None}
    total = sum({id(own.array): own.array.num_bytes for own in made.values()}.values())
    if not made or total > _MEMORY_FRACTION * case.device.memory_bytes:
        return None
    work = tuple(position for own in made.values() for position in own.prepared)
    then = {index: converted_on_device(case, index, own) for index, own in made.items()}
    return _resident(case, _largest(case, list(made)), tuple(made), total, work, then)


def _resident(
    case: Case,
    location: Location | None,
    copies: tuple[int, ...],
    total_bytes: int,
    loading: tuple[int, ...],
    then: Mapping[int, tuple[Op, ...]] | None = None,
) -> Occurrence:
    batch_bytes = sum(copy_at(case.trace, index).num_bytes for index in copies)
    gathered: dict[int, tuple[Event, ...]] = {
        index: (
            _gather(case, copy_at(case.trace, index), total_bytes),
            *((then or {}).get(index, ())),
        )
        for index in copies
    }
    return Occurrence(
        title=f"{format_bytes(batch_bytes)} of a data set that would fit on the GPU are copied "
        "in every step",
        fix="copy the data set to the GPU once, and index it there",
        evidence=f"the data set takes {format_bytes(total_bytes)}, less than a quarter of the "
        f"{format_bytes(case.device.memory_bytes)} of the {case.device.name}",
        location=location,
        events=tuple(sorted((*loading, *copies))),
        edit=Edit(replaced={**dict.fromkeys(loading, ()), **gathered}),
    )


def _gather(case: Case, copy: Copy, total_bytes: int) -> Op:
    """Return the operator that chooses on the device what was copied."""
    dtype = copy.dtype or "float32"
    element_bytes = TensorSpec(shape=(), dtype=dtype, device="cuda:0").num_bytes
    chosen = TensorSpec(shape=(copy.num_bytes // element_bytes,), dtype=dtype, device="cuda:0")
    whole = msgspec.structs.replace(chosen, shape=(total_bytes // element_bytes,))
    index = TensorSpec(shape=(case.trace.batch_size or 1,), dtype="int64", device="cuda:0")
    return Op(
        name="aten.index_select.default",
        inputs=(whole, index),
        outputs=(chosen,),
        attributes={"dim": 0},
        phase=Phase.FORWARD,
        location=copy.location,
    )


def _held(case: Case, index: int) -> tuple[int, int] | None:
    """Return what chose a copied batch from a host tensor, and its size; None for another batch."""
    copy = copy_at(case.trace, index)
    for position in reversed(range(index)):
        op = case.trace.events[position]
        if not isinstance(op, Op) or not op.is_on_host or op.phase is not Phase.FORWARD:
            continue
        if copy.storage == -1 or not any(own.storage == copy.storage for own in op.outputs):
            continue
        size = op.inputs[0].num_bytes if bare_name(op) in _CHOOSING else 0
        return (position, size) if size >= 2 * copy.num_bytes else None
    return None


def _largest(case: Case, copies: list[int]) -> Location | None:
    """Return the line that copies the most bytes."""
    lines = by_line(case.trace, copies)
    total = [sum(copy_at(case.trace, index).num_bytes for index in own) for _, own in lines]
    return lines[total.index(max(total))][0]

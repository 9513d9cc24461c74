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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from breakeven.doctor.copies import converted_on_device, element_bytes, numpy_batch
from breakeven.doctor.crossings import Upload, is_by_framework, memory_writers, uploads
from breakeven.doctor.events import bare_name, copy_at, op_at
from breakeven.doctor.rule import Case, Found, Occurrence, by_line
from breakeven.simulate import Edit
from breakeven.trace import Copy, Event, Location, Op, Phase, TensorSpec
from breakeven.units import format_bytes

CAUSE = "DATA_NOT_RESIDENT"

# The rest of the memory is for the model, its activations and what the allocator cannot use.
_MEMORY_FRACTION = 0.25

# Taking some samples of a tensor.
_CHOOSING = frozenset({
    "slice", "index", "index_select", "select", "narrow", "split", "split_with_sizes", "chunk",
    "unbind", "gather",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _DataSet:
    """Data in memory that batches are taken from.

    Args:
        num_bytes: All of it.
        copies: The batches that are copied.
        loading: Positions of what takes a batch from it.
        location: Where a batch is taken, or copied.
        then: What the device does with a batch, by the position of its copy.
    """

    num_bytes: int
    copies: Sequence[int]
    loading: Sequence[int]
    location: Location | None
    then: Mapping[int, tuple[Op, ...]] = field(default_factory=dict[int, tuple[Op, ...]])


def detect(case: Case) -> Found:
    batches = [index for index, kind in uploads(case).items() if kind is Upload.BATCH]
    copies = dict(case.each(Copy))
    for find in (_loaded, _computed, _chosen):
        data = find(case, batches)
        if data is None or data.num_bytes > _MEMORY_FRACTION * case.device.memory_bytes:
            continue
        batch_bytes = sum(copies[index].num_bytes for index in data.copies)
        gathered: dict[int, tuple[Event, ...]] = {
            index: (_gather(case, copies[index], data.num_bytes), *data.then.get(index, ()))
            for index in data.copies
        }
        yield Occurrence(
            title=f"{format_bytes(batch_bytes)} of a data set that would fit on the GPU are copied "
            "in every step",
            fix="copy the data set to the GPU once, and index it there",
            evidence=f"the data set takes {format_bytes(data.num_bytes)}, less than a quarter of "
            f"the {format_bytes(case.device.memory_bytes)} of the {case.device.name}",
            location=data.location,
            events=tuple(sorted((*data.loading, *data.copies))),
            edit=Edit(replaced={**dict.fromkeys(data.loading, ()), **gathered}),
        )
        return


def _loaded(case: Case, batches: Sequence[int]) -> _DataSet | None:
    """Return what loaders take from tensors in memory, if all of them do."""
    loaders = case.facts.loaders
    is_in_memory = all(loader.data_bytes and loader.is_indexed for loader in loaders)
    if not batches or not loaders or not is_in_memory:
        return None
    copies = dict(case.each(Copy))
    is_by_library = any(is_by_framework(copies[index]) for index in batches)
    fetching = (i for i, op in case.each(Op) if op.is_on_host and op.phase is Phase.DATA)
    return _DataSet(
        num_bytes=sum(loader.data_bytes for loader in loaders),
        copies=batches,
        loading=(*case.works("data"), *fetching),
        location=loaders[0].location if is_by_library else _largest(case, batches),
    )


def _computed(case: Case, batches: Sequence[int]) -> _DataSet | None:
    """Return the arrays in memory that NumPy makes batches of."""
    made = {index: own for index in batches if (own := numpy_batch(case, index)) is not None}
    if not made:
        return None
    return _DataSet(
        num_bytes=sum({id(own.array): own.array.num_bytes for own in made.values()}.values()),
        copies=tuple(made),
        loading=[position for own in made.values() for position in own.prepared],
        location=_largest(case, tuple(made)),
        then={index: converted_on_device(case, index, own) for index, own in made.items()},
    )


def _chosen(case: Case, batches: Sequence[int]) -> _DataSet | None:
    """Return the host tensors that batches are chosen from."""
    held = {index: own for index in batches if (own := _held(case, index)) is not None}
    if not held:
        return None
    return _DataSet(
        num_bytes=sum(size for _, size in held.values()),
        copies=tuple(held),
        loading=[position for position, _ in held.values()],
        location=_largest(case, tuple(held)),
    )


def _held(case: Case, index: int) -> tuple[int, int] | None:
    """Return what chose a copied batch from a host tensor, and its size; None for another batch."""
    copy = copy_at(case.trace, index)
    position = case.once(memory_writers).writer(copy.storage, index)
    op = None if position is None else op_at(case.trace, position)
    if position is None or op is None or op.phase is not Phase.FORWARD:
        return None
    size = op.inputs[0].num_bytes if bare_name(op) in _CHOOSING else 0
    return (position, size) if size >= 2 * copy.num_bytes else None


def _gather(case: Case, copy: Copy, total_bytes: int) -> Op:
    """Return the operator that chooses on the device what was copied."""
    dtype = copy.dtype or "float32"
    width = element_bytes(dtype)
    chosen = TensorSpec(shape=(copy.num_bytes // width,), dtype=dtype, device="cuda:0")
    whole = replace(chosen, shape=(total_bytes // width,))
    index = TensorSpec(shape=(case.trace.batch_size or 1,), dtype="int64", device="cuda:0")
    return Op(
        name="aten.index_select.default",
        inputs=(whole, index),
        outputs=(chosen,),
        attributes={"dim": 0},
        phase=Phase.FORWARD,
        location=copy.location,
    )


def _largest(case: Case, copied: Sequence[int]) -> Location | None:
    """Return the line that copies the most bytes."""
    copies = dict(case.each(Copy))
    lines = by_line(case.trace, copied)
    return max(lines, key=lambda line: sum(copies[index].num_bytes for index in line[1]))[0]

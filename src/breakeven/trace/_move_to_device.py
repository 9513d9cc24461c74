"""The step of a script that never uses a GPU, as if its model and batches were moved to one."""

from __future__ import annotations

import msgspec

from breakeven.errors import Caveat
from breakeven.trace._events import Copy, Event, Op, Phase, Sync, TensorSpec
from breakeven.trace._step_trace import StepTrace

NEVER_ON_DEVICE = Caveat(
    code="never-on-device",
    message="The script never uses a GPU; predicted as if its model and its batches were moved to "
    "one.",
)
DEVICE = "cuda:0"

_READ = "aten._local_scalar_dense.default"
# Their results' sizes depend on values, so on a GPU the host reads a count back to allocate them.
_SHAPE_FROM_VALUES = ("aten.nonzero.", "aten.masked_select.", "aten._unique2.", "aten.unique_dim.")
_INDEXING = ("aten.index.Tensor", "aten.index_put.", "aten.index_put_.", "aten._index_put_impl_.")
_COUNT_BYTES = 8


def moved_to_device(trace: StepTrace, *, input_storages: frozenset[int]) -> StepTrace:
    """Return the step as it would run with model and batches on ``cuda:0``.

    Operators of the forward, backward and optimizer phases run on the device. What the data phase
    made, and the storages in ``input_storages``, is copied there from pageable memory before its
    first use, in the way that ``batch.to(device)`` does, once per step; a view is not yet a use, so
    that of a slice of the data set only the slice is copied. Reads of values become syncs. Step
    counters of an optimizer stay on the host: CUDA's Adam keeps them there and reads nothing back.
    Where the trace knows no peak memory, that of the moved tensors is worked out: each lives from
    its first to its last use, those that outlive the step all along.

    What leaves no trace on a CPU stays unseen: ``tensor.numpy()`` and ``print(tensor)`` would sync.

    Args:
        trace: A step on the host; what it has on a device already is left alone.
        input_storages: Storages of the batch that were made outside of the recorded events.
    """
    counters = _counter_storages(trace)
    moved: set[int] = set()
    made_by_data: set[int] = set()
    events: list[Event] = []
    for event in trace.events:
        if not isinstance(event, Op) or not event.is_on_host:
            events.append(event)
            continue
        if event.phase is Phase.DATA:
            made_by_data.update(tensor.storage for tensor in event.outputs)
            events.append(event)
            continue
        if event.inputs and all(tensor.storage in counters for tensor in event.inputs):
            events.append(event)
            continue
        for tensor in () if _is_view(event) else event.inputs:
            is_batch = tensor.storage in input_storages or tensor.storage in made_by_data
            if is_batch and tensor.device == "cpu" and tensor.storage not in moved:
                moved.add(tensor.storage)
                events.append(_copy_in(tensor, event))
        if event.name == _READ:
            num_bytes = event.inputs[0].element_bytes
            events.append(
                Sync(kind="item", num_bytes=num_bytes, phase=event.phase, location=event.location)
            )
            continue
        events.append(_on_device(event, counters))
        if _reads_sizes_back(event):
            events.append(
                Sync(
                    kind="nonzero",
                    num_bytes=_COUNT_BYTES,
                    phase=event.phase,
                    location=event.location,
                )
            )
    known = any(caveat.code == NEVER_ON_DEVICE.code for caveat in trace.caveats)
    return msgspec.structs.replace(
        trace,
        events=tuple(events),
        peak_memory_bytes=trace.peak_memory_bytes or _peak_memory_bytes(events),
        caveats=trace.caveats if known else (*trace.caveats, NEVER_ON_DEVICE),
    )


def _counter_storages(trace: StepTrace) -> frozenset[int]:
    """Return the scalars that the optimizer reads and that nothing but counting writes."""
    read: set[int] = set()
    written: set[int] = set()
    for op in trace.ops:
        is_scalar = all(not tensor.shape for tensor in op.inputs)
        if op.phase is Phase.OPTIMIZER and is_scalar and op.inputs:
            if op.name == _READ:
                read.add(op.inputs[0].storage)
        else:
            written.update(tensor.storage for tensor in op.outputs)
    return frozenset(read - written - {-1})


def _is_view(op: Op) -> bool:
    """Return whether the result shares its input's memory without having written to it."""
    is_in_place = op.name.split(".")[1].endswith("_")
    inputs = {tensor.storage for tensor in op.inputs} - {-1}
    return not is_in_place and any(tensor.storage in inputs for tensor in op.outputs)


def _on_device(op: Op, counters: frozenset[int]) -> Op:
    def moved(tensor: TensorSpec) -> TensorSpec:
        if tensor.device != "cpu" or tensor.storage in counters:
            return tensor
        return msgspec.structs.replace(tensor, device=DEVICE)

    return msgspec.structs.replace(
        op,
        inputs=tuple(map(moved, op.inputs)),
        outputs=tuple(map(moved, op.outputs)),
        device=DEVICE,
    )


def _copy_in(tensor: TensorSpec, user: Op) -> Copy:
    return Copy(
        source="cpu",
        destination=DEVICE,
        num_bytes=tensor.num_bytes,
        phase=user.phase,
        location=user.location,
        storage=tensor.storage,
    )


def _reads_sizes_back(op: Op) -> bool:
    if op.name.startswith(_SHAPE_FROM_VALUES):
        return True
    if not op.name.startswith(_INDEXING):
        return False
    indices = op.inputs[1:]
    if "index_put" in op.name:
        values = op.inputs[-1]
        indices = op.inputs[1:-1]
        # One value under a mask is a masked_fill, which needs no count.
        if values.numel == 1 and not op.attributes.get("accumulate", False):
            return False
    return any(index.dtype in ("bool", "uint8") for index in indices)


def _peak_memory_bytes(events: list[Event]) -> int:
    """Return the largest sum of device tensors alive at once."""
    num_bytes: dict[int, int] = {}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    persistent: set[int] = set()
    for index, event in enumerate(events):
        if not isinstance(event, Op) or event.is_on_host:
            continue
        for tensors, is_input in ((event.inputs, True), (event.outputs, False)):
            for tensor in tensors:
                if tensor.device == "cpu" or tensor.storage < 0:
                    continue
                storage = tensor.storage
                if storage not in first:
                    first[storage] = index
                    if is_input:
                        persistent.add(storage)
                last[storage] = index
                num_bytes[storage] = max(num_bytes.get(storage, 0), tensor.num_bytes)
    changes = [0] * (len(events) + 1)
    alive = 0
    for storage, size in num_bytes.items():
        if storage in persistent:
            alive += size
        else:
            changes[first[storage]] += size
            changes[last[storage] + 1] -= size
    peak = alive
    for change in changes:
        alive += change
        peak = max(peak, alive)
    return peak

"""Tensors that go to the host and come back changed, within one forward pass."""

from __future__ import annotations

from breakeven.doctor.copy_owner import Upload, uploads
from breakeven.doctor.memory import Origins, newest_storages
from breakeven.doctor.operators import is_in_place
from breakeven.doctor.rule import Case
from breakeven.doctor.sync_flow import feeds_simulator, reaches
from breakeven.trace import Copy, Event, HostWork, Op, Phase, Sync

# How a whole tensor is read.
TENSOR_READS = frozenset({"cpu", "tolist", "numpy", "copy_"})
# No single number of torch is larger.
NUMBER_BYTES = 8


def round_trips(case: Case, origins: Origins) -> dict[int, tuple[int, ...]]:
    """Return reads of whole tensors in the forward pass, and the copies of what came of them.

    Before the backward pass, memory that is younger than the read and no batch was made from what
    was read, unless the source says otherwise: NumPy hides the way between.
    """
    events = case.trace.events
    kinds = uploads(case)
    newest = newest_storages(events)
    first_layer = _first_layer(events, origins)
    found: dict[int, tuple[int, ...]] = {}
    for index, event in enumerate(events):
        if not isinstance(event, Sync) or index < first_layer or not _is_of_tensor(case, event):
            continue
        later: list[int] = []
        for position in range(index + 1, _end_of_forward(events, index)):
            copy = events[position]
            if not isinstance(copy, Copy) or copy.storage <= newest[index]:
                continue
            is_own = kinds.get(position) not in (None, Upload.CREATED, Upload.OF_HOST_PART)
            if is_own and _may_come_from(case, event, copy):
                later.append(position)
        if later:
            found[index] = tuple(later)
    return found


def is_whole_read(sync: Sync) -> bool:
    """Return whether a whole tensor is read, not a number."""
    return sync.kind in TENSOR_READS and sync.num_bytes > NUMBER_BYTES


def _first_layer(events: tuple[Event, ...], origins: Origins) -> int:
    """Return where the model begins to compute: the first use of a parameter.

    What is read before that belongs to the step before: a script reads its metrics after the
    update.
    """
    for index, event in enumerate(events):
        if not isinstance(event, Op) or event.phase is not Phase.FORWARD or is_in_place(event):
            continue
        if any(tensor.storage in origins.updated for tensor in event.inputs):
            return index
    return len(events)


def _is_of_tensor(case: Case, sync: Sync) -> bool:
    """Return whether a whole tensor is read in the forward pass, other than for a simulator."""
    return (
        is_whole_read(sync)
        and sync.phase is Phase.FORWARD
        and not case.sources.is_at(sync.location, feeds_simulator)
    )


def _end_of_forward(events: tuple[Event, ...], index: int) -> int:
    """Return where the backward pass begins, or the next batch; ``index`` without a backward."""
    for position in range(index + 1, len(events)):
        event = events[position]
        if isinstance(event, HostWork):
            if event.kind == "data":
                return position
        elif event.phase is Phase.BACKWARD:
            return position
        elif event.phase is not Phase.FORWARD:
            return index
    return index


def _may_come_from(case: Case, read: Sync, copy: Copy) -> bool:
    source = case.sources.find(read.location)
    if source is None or read.location is None or copy.location is None:
        return True
    if copy.location.file != read.location.file:
        return True
    return reaches(source, read.location.line, copy.location.line)

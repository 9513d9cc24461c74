"""Copies to the device that the user's lines are to blame for."""

from __future__ import annotations

from breakeven.doctor.copy_owner import Made, Upload, made_on_host, uploads
from breakeven.doctor.events import copy_at
from breakeven.doctor.memory import Origins
from breakeven.doctor.rule import Case
from breakeven.doctor.sync_round_trip import round_trips
from breakeven.trace import Copy, Op, StepTrace
from breakeven.units import format_bytes


def owned(case: Case, kind: Upload) -> list[int]:
    """Return the copies of a kind, without those that bring back what was read."""
    trips = round_trips(case, Origins(case.trace))
    back = {copy for copies in trips.values() for copy in copies}
    return [index for index, own in uploads(case).items() if own is kind and index not in back]


def makers_of(trace: StepTrace, copies: tuple[int, ...]) -> tuple[int, ...]:
    """Return the operators of the host that made what is copied, out of nothing else."""
    made = {storage for storage, origin in made_on_host(trace).items() if origin is not Made.DATA}
    wanted = {
        event.storage for event in (trace.events[i] for i in copies) if isinstance(event, Copy)
    }
    wanted &= made
    makers: list[int] = []
    for index in reversed(range(len(trace.events))):
        event = trace.events[index]
        if not isinstance(event, Op) or not event.is_on_host:
            continue
        if any(tensor.storage in wanted for tensor in event.outputs):
            makers.append(index)
            wanted.update({tensor.storage for tensor in event.inputs} & made)
    return tuple(reversed(makers))


def seen_copies(case: Case, events: tuple[int, ...]) -> str:
    """Return in words how many copies there are, and of how much."""
    copies = [copy_at(case.trace, index) for index in events]
    total = sum(copy.num_bytes for copy in copies)
    memory = "pinned" if all(copy.is_pinned for copy in copies) else "pageable"
    number = f"{len(copies)} cop{'y' if len(copies) == 1 else 'ies'}"
    return f"{number} of {format_bytes(total)} from {memory} memory in the recorded step"

"""Copies to the device, by what they are of, and what made them on the host."""

from __future__ import annotations

from breakeven.doctor.copy_owner import Made, Upload, made_on_host, uploads
from breakeven.doctor.events import copy_at
from breakeven.doctor.memory import Origins
from breakeven.doctor.rule import Case, num_copies
from breakeven.doctor.sync_flow import round_trips
from breakeven.trace import Op, StepTrace
from breakeven.units import format_bytes


def uploaded(case: Case, kind: Upload) -> list[int]:
    """Return the copies of a kind, without those that bring back what was read."""
    trips = round_trips(case, Origins(case.trace))
    back = {copy for copies in trips.values() for copy in copies}
    return [index for index, own in uploads(case).items() if own is kind and index not in back]


def makers_of(trace: StepTrace, copies: tuple[int, ...]) -> tuple[int, ...]:
    """Return the operators of the host that made what is copied, out of nothing else."""
    made = {storage for storage, origin in made_on_host(trace).items() if origin is not Made.DATA}
    wanted = made & {copy_at(trace, index).storage for index in copies}
    makers: list[int] = []
    for index in reversed(range(len(trace.events))):
        op = trace.events[index]
        if not isinstance(op, Op) or not op.is_on_host:
            continue
        if any(tensor.storage in wanted for tensor in op.outputs):
            makers.append(index)
            wanted |= made & {tensor.storage for tensor in op.inputs}
    return tuple(reversed(makers))


def seen_copies(case: Case, events: tuple[int, ...]) -> str:
    """Return in words how many copies there are, and of how much."""
    copies = [copy_at(case.trace, index) for index in events]
    total = sum(copy.num_bytes for copy in copies)
    memory = "pinned" if all(copy.is_pinned for copy in copies) else "pageable"
    number = num_copies(len(copies))
    return f"{number} of {format_bytes(total)} from {memory} memory in the recorded step"

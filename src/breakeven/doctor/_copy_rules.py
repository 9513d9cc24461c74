"""Rules about copies from host to device."""

from __future__ import annotations

from typing import ClassVar, final

import msgspec

from breakeven.doctor._rule import Case, Occurrence, by_line, times_per_step
from breakeven.simulate import Edit
from breakeven.trace import Copy, Event, Location, Op, Phase, StepTrace, TensorSpec

# Wraps data of Python in a tensor: the data came about on the host, in this step.
_FROM_PYTHON = "aten.lift_fresh"


@final
class BlockingCopy:
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
        ``DataLoader(..., pin_memory=True)`` and ``batch.to(device, non_blocking=True)``. Both are
        needed: without pinned memory the copy blocks whatever is asked for. A data set that fits
        the GPU is best copied once, before the loop.

    Known limits:
        Pinning takes time in a thread of the loader, which the gain shown leaves out. Do not call
        ``pin_memory()`` on each batch in the loop: that costs more than it gains.
    """

    code: ClassVar[str] = "COPY001"
    cause: ClassVar[str] = "H2D_PAGEABLE"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that copies."""
        created = _created_storages(case.trace)
        found = [
            index
            for index, event in enumerate(case.trace.events)
            if isinstance(event, Copy)
            and event.is_to_device
            and event.is_blocking
            and event.storage not in created
        ]
        return tuple(
            Occurrence(
                title="a batch is copied to the GPU from pageable memory "
                f"{times_per_step(len(events))}, and the host waits for it",
                fix="pinned memory, as from DataLoader(pin_memory=True), and "
                ".to(device, non_blocking=True)",
                location=location,
                events=events,
                edit=Edit(replaced={i: (_queued(case.trace.events[i]),) for i in events}),
            )
            for location, events in by_line(case.trace, found)
        )


@final
class CreatedOnHost:
    """COPY002: a tensor is made on the host and copied to the device in every step.

    What it does:
        Finds copies to the device of a tensor that operators on the host made in the same step
        out of nothing but sizes and Python numbers: noise, masks, positions, targets.

    Why it costs time:
        The host computes it slower than the device would, and waits for the copy.

    Evidence:
        From 7 % of the step to most of a call in public reports.

    Fix:
        Make it where it is used: ``torch.randn(..., device=x.device)``, ``torch.arange(n,
        device=...)``; keep constants in a buffer (``register_buffer``).

    Known limits:
        Random numbers differ between the generators of host and device.
    """

    code: ClassVar[str] = "COPY002"
    cause: ClassVar[str] = "H2D_CREATE"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that copies."""
        created = _created_storages(case.trace)
        found = [
            index
            for index, event in enumerate(case.trace.events)
            if isinstance(event, Copy) and event.is_to_device and event.storage in created
        ]
        return tuple(
            _moved(case.trace, location, copies, created)
            for location, copies in by_line(case.trace, found)
        )


def _moved(
    trace: StepTrace,
    location: Location | None,
    copies: tuple[int, ...],
    created: frozenset[int],
) -> Occurrence:
    """Return the occurrence whose fix makes the copied tensors on the device from the start."""
    wanted = {_storage(trace.events[index]) for index in copies} & created
    makers: list[int] = []
    for index in reversed(range(len(trace.events))):
        event = trace.events[index]
        if not isinstance(event, Op) or not event.is_on_host:
            continue
        if any(tensor.storage in wanted for tensor in event.outputs):
            makers.append(index)
            wanted.update({tensor.storage for tensor in event.inputs} & created)
    moved = {index: (_on_device(trace.events[index]),) for index in makers}
    return Occurrence(
        title=f"a tensor is made on the host and copied to the GPU {times_per_step(len(copies))}",
        fix="make it on the GPU (device=...), or keep it in a buffer",
        location=location,
        events=tuple(sorted((*makers, *copies))),
        edit=Edit(replaced={**dict.fromkeys(copies, ()), **moved}),
    )


def _created_storages(trace: StepTrace) -> frozenset[int]:
    """Return the host storages that were made in the step from no tensor that was there before."""
    created: set[int] = set()
    for op in trace.ops:
        if not op.is_on_host or op.phase not in (Phase.FORWARD, Phase.BACKWARD):
            continue
        is_from_nothing = op.name.startswith(_FROM_PYTHON) or all(
            tensor.storage in created for tensor in op.inputs
        )
        if is_from_nothing:
            created.update(tensor.storage for tensor in op.outputs)
    return frozenset(created - {-1})


def _storage(event: Event) -> int:
    assert isinstance(event, Copy)
    return event.storage


def _queued(event: Event) -> Copy:
    assert isinstance(event, Copy)
    return msgspec.structs.replace(event, is_pinned=True, non_blocking=True)


def _on_device(event: Event) -> Op:
    assert isinstance(event, Op)

    def moved(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(msgspec.structs.replace(tensor, device="cuda:0") for tensor in tensors)

    return msgspec.structs.replace(
        event, inputs=moved(event.inputs), outputs=moved(event.outputs), device="cuda:0"
    )

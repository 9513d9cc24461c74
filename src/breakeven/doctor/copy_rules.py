"""Rules about copies from host to device: how they are made, and what of."""

from __future__ import annotations

from typing import ClassVar, final

from breakeven.doctor.copy_data_rules import COPY_DATA_RULES
from breakeven.doctor.copy_edits import on_device, queued
from breakeven.doctor.copy_owner import Made, Upload, is_by_framework, made_on_host, uploads
from breakeven.doctor.copy_wide_rules import COPY_WIDE_RULES
from breakeven.doctor.events import copy_at
from breakeven.doctor.rule import Case, Occurrence, Rule, by_line, times_per_step
from breakeven.doctor.sync_origin import Origins
from breakeven.doctor.sync_round_trip import round_trips
from breakeven.simulate import Edit
from breakeven.trace import Copy, Event, Location, Op, StepTrace
from breakeven.units import format_bytes

# An observation of a simulator is smaller; no loader could pin it ahead of time.
_MIN_BATCH_BYTES = 64


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
        Pinned memory and a copy that does not block; both are needed: without pinned memory the
        copy blocks whatever is asked for. A data set that fits the GPU is best copied once, before
        the loop.

        ```python
        loader = DataLoader(data, batch_size=64)
        for x, y in loader:
            x, y = x.to(device), y.to(device)
        ```

        ```python
        loader = DataLoader(data, batch_size=64, pin_memory=True)
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        ```

    Known limits:
        Pinning takes time in a thread of the loader, which the gain shown leaves out. Do not call
        ``pin_memory()`` on each batch in the loop: that costs more than it gains. Where a framework
        copies the batch, the line is that of the loader.
    """

    code: ClassVar[str] = "COPY001"
    cause: ClassVar[str] = "H2D_PAGEABLE"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that copies."""
        batches = [
            index for index in _owned(case, Upload.BATCH) if copy_at(case.trace, index).is_blocking
        ]
        if all(copy_at(case.trace, index).num_bytes < _MIN_BATCH_BYTES for index in batches):
            return ()
        own = [index for index in batches if not is_by_framework(copy_at(case.trace, index))]
        theirs = [index for index in batches if index not in own]
        found = [_blocking(case, location, events) for location, events in by_line(case.trace, own)]
        loader = next((loader for loader in case.facts.loaders if not loader.pin_memory), None)
        if theirs and loader is not None:
            found.append(_blocking(case, loader.location, tuple(theirs)))
        return tuple(found)


@final
class CreatedOnHost:
    """COPY002: a tensor is made on the host and copied to the device in every step.

    What it does:
        Finds copies to the device of a tensor that operators on the host made in the same step
        out of nothing but sizes and Python numbers: noise, masks, positions, targets; and of
        indices on the host that choose from a tensor of the device.

    Why it costs time:
        The host computes it slower than the device would, and waits for the copy.

    Evidence:
        From 7 % of the step to most of a call in public reports.

    Fix:
        Make it where it is used; keep constants in a buffer (``register_buffer``).

        ```python
        noise = torch.randn(x.shape).to(device)
        ```

        ```python
        noise = torch.randn(x.shape, device=x.device)
        ```

    Known limits:
        Random numbers differ between the generators of host and device.
    """

    code: ClassVar[str] = "COPY002"
    cause: ClassVar[str] = "H2D_CREATE"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that copies."""
        return (
            *_made_on_device(
                case,
                _owned(case, Upload.CREATED),
                title="a tensor is made on the host and copied to the GPU {often}",
                fix="make it on the GPU (device=...), or keep it in a buffer",
            ),
            *_made_on_device(
                case,
                _owned(case, Upload.INDEX),
                title="an index on the host chooses from a tensor of the GPU and is copied {often}",
                fix="make the index on the GPU: torch.randperm(n, device=...)",
            ),
        )


@final
class ScalarsToDevice:
    """COPY003: numbers of Python become a tensor of the device in every step.

    What it does:
        Finds tensors of up to 64 numbers, or of a list of Python, that the step makes and copies to
        the device: ``torch.tensor(0.1).to(device)``, ``torch.tensor([1, 0], device=device)``.

    Why it costs time:
        Building a tensor from Python data and copying it from pageable memory takes the host longer
        than a kernel that has the number as its argument, and the copy waits for the device.

    Evidence:
        17 % of a training on a T4 was spent in ``torch.tensor`` in a public report.

    Fix:
        Operators take Python numbers as they are. A constant belongs into a buffer, a number that
        has to be a tensor is filled in on the device.

        ```python
        loss = loss * torch.tensor(0.5).to(device)
        ```

        ```python
        loss = loss * 0.5  # or torch.full((), 0.5, device=device)
        ```

    Known limits:
        A list that is new in every step has to be copied somehow: pin it, or compute it on the
        device.
    """

    code: ClassVar[str] = "COPY003"
    cause: ClassVar[str] = "H2D_SCALAR"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each line that copies."""
        found = _owned(case, Upload.SCALARS)
        return tuple(
            Occurrence(
                title=f"numbers of Python become a tensor of the GPU {times_per_step(len(events))}",
                fix="use the Python number itself, a buffer, or torch.full((), x, device=...)",
                evidence=_seen(case, events),
                location=location,
                events=(*_makers(case.trace, events), *events),
                edit=Edit(
                    replaced=dict.fromkeys((*_makers(case.trace, events), *events), ()),
                ),
            )
            for location, events in by_line(case.trace, found)
        )


def _owned(case: Case, kind: Upload) -> list[int]:
    """Return the copies of a kind, without those that bring back what was read."""
    trips = round_trips(case, Origins(case.trace))
    back = {copy for copies in trips.values() for copy in copies}
    return [index for index, own in uploads(case).items() if own is kind and index not in back]


def _blocking(case: Case, location: Location | None, events: tuple[int, ...]) -> Occurrence:
    is_pinned = all(copy_at(case.trace, index).is_pinned for index in events)
    often = times_per_step(len(events))
    if is_pinned:
        title = f"a batch in pinned memory is copied to the GPU {often} by a copy that blocks"
        fix = ".to(device, non_blocking=True)"
    else:
        title = (
            f"a batch is copied to the GPU from pageable memory {often}, and the host waits for it"
        )
        fix = (
            "pinned memory, as from DataLoader(pin_memory=True), and .to(device, non_blocking=True)"
        )
    return Occurrence(
        title=title,
        fix=fix,
        evidence=_seen(case, events),
        location=location,
        events=events,
        edit=Edit(replaced={index: (queued(copy_at(case.trace, index)),) for index in events}),
    )


def _made_on_device(
    case: Case, copies: list[int], *, title: str, fix: str
) -> tuple[Occurrence, ...]:
    """Return occurrences whose fix makes the copied tensors on the device from the start."""
    found: list[Occurrence] = []
    for location, events in by_line(case.trace, copies):
        makers = _makers(case.trace, events)
        moved: dict[int, tuple[Event, ...]] = {
            index: (on_device(case.trace.events[index]),) for index in makers
        }
        found.append(
            Occurrence(
                title=title.format(often=times_per_step(len(events))),
                fix=fix,
                evidence=_seen(case, events),
                location=location,
                events=tuple(sorted((*makers, *events))),
                edit=Edit(replaced={**dict.fromkeys(events, ()), **moved}),
            )
        )
    return tuple(found)


def _makers(trace: StepTrace, copies: tuple[int, ...]) -> tuple[int, ...]:
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


def _seen(case: Case, events: tuple[int, ...]) -> str:
    copies = [copy_at(case.trace, index) for index in events]
    total = sum(copy.num_bytes for copy in copies)
    memory = "pinned" if all(copy.is_pinned for copy in copies) else "pageable"
    number = f"{len(copies)} cop{'y' if len(copies) == 1 else 'ies'}"
    return f"{number} of {format_bytes(total)} from {memory} memory in the recorded step"


COPY_RULES: tuple[Rule, ...] = (
    BlockingCopy(),
    CreatedOnHost(),
    ScalarsToDevice(),
    *COPY_DATA_RULES,
    *COPY_WIDE_RULES,
)

"""Choice of the typical recorded step, with typical host times of the steps like it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median_high

import msgspec
from msgspec.structs import replace

from breakeven.capture.messages import LoaderUse
from breakeven.capture.record.event_log import SCRIPT_GAP_NS, StepLog
from breakeven.trace import Event, HostWork, Location, Op, Phase, RunFacts, num_micro_batches

# Short pauses are the script's work if a line has this number before the same operator. A framework
# trains in one line, with its own pauses before operators of all kinds.
_LEAST_PAUSES = 8

_Shapes = tuple[tuple[int, ...], ...]
_WorkKey = tuple[int, str, Location | None]


class Segment(msgspec.Struct, kw_only=True):
    """The recording between two updates; joined, of a whole step.

    Args:
        log: Its events and calls.
        peak_bytes: Peak of the device's live memory within it.
        live_bytes: The device's live memory at its end.
        loader: Its use of the loader that it used most.
        num_backwards: Number of backward passes.
        is_whole: Whether it was recorded from its start.
    """

    log: StepLog
    peak_bytes: int
    live_bytes: int
    loader: LoaderUse | None
    num_backwards: int
    is_whole: bool

    @property
    def events(self) -> list[Event]:
        """Return the events in the order in which the host issues them."""
        return self.log.events

    @property
    def uses_device(self) -> bool:
        """Return whether any operator runs on the device."""
        return any(isinstance(event, Op) and not event.is_on_host for event in self.events)

    @property
    def has_graph(self) -> bool:
        """Return whether a CUDA graph runs a part of the step."""
        return any(isinstance(event, Op) and event.is_replayed for event in self.events)

    @property
    def batch_size(self) -> int | None:
        """Return the number of samples: from its loader, or from the inputs of its model calls."""
        if self.loader is not None:
            return self.loader.batch_size * self.loader.batches_per_step
        inputs = self.log.model_inputs
        calls = [call.noted for call in self.log.model_calls]
        if len(inputs) > 1 and len(inputs) == num_micro_batches(self.events, calls):
            return sum(inputs)
        # Among other calls (time steps, parts of a GAN), the relevant one is unknown.
        return inputs[0] if len(inputs) == 1 else None


def join(parts: list[Segment]) -> Segment:
    """Return the segments of one step joined into one."""
    log = StepLog()
    for part in parts:
        offset = len(log.events)
        log.events += part.events
        log.model_inputs += part.log.model_inputs
        log.model_calls += [
            replace(call, noted=replace(call.noted, first_event=call.noted.first_event + offset))
            for call in part.log.model_calls
        ]
        log.reached |= part.log.reached
        log.collectives += part.log.collectives
        log.is_anomaly_checked |= part.log.is_anomaly_checked
    uses = [part.loader for part in parts if part.loader]
    return Segment(
        log=log,
        peak_bytes=max(part.peak_bytes for part in parts),
        live_bytes=parts[-1].live_bytes,
        loader=replace(
            uses[-1],
            batches_per_step=sum(use.batches_per_step for use in uses),
            wait_ns=sum(use.wait_ns for use in uses),
        )
        if uses
        else None,
        num_backwards=sum(part.num_backwards for part in parts),
        is_whole=all(part.is_whole for part in parts),
    )


def typical_of(steps: Sequence[Segment]) -> list[Segment]:
    """Return the steps that do the typical work; the last one represents all.

    A script may warm up on the CPU, or time both. Steps repeat, except at the end of an epoch. So
    the most frequent sequence of operators is typical, or the latest of equally frequent ones. If
    most steps differ, as in an adaptive solver, a step of median length is typical.
    """
    candidates: Sequence[Segment] = [step for step in steps if step.uses_device] or steps
    # A script takes steps without a CUDA graph before it captures one.
    candidates = [step for step in candidates if step.has_graph] or candidates
    # Do not compare host work: on a busy machine, any pause looks like it.
    signatures = [
        tuple(
            (event.name, event.device, shapes_of(event)) if isinstance(event, Op) else type(event)
            for event in step.events
            if not isinstance(event, HostWork)
        )
        for step in candidates
    ]
    hashes, lengths = list(map(hash, signatures)), list(map(len, signatures))
    typical, count = Counter(reversed(hashes)).most_common(1)[0]
    if 2 * count < len(hashes):
        middle = median_high(lengths)
        typical = [own for own, n in zip(hashes, lengths, strict=True) if n == middle][-1]
    alike = [step for step, own in zip(candidates, hashes, strict=True) if own == typical]
    # A loader that prefetches gives no batch to the last step of an epoch, and two to the first.
    size, _ = Counter(step.batch_size for step in reversed(alike)).most_common(1)[0]
    return [step for step in alike if step.batch_size == size]


def with_typical_host_times(alike: list[Segment]) -> tuple[list[Event], list[int]]:
    """Return the last step's events, with host times that are typical of all the steps.

    A pause of the operating system looks like the script's work in one step, or lengthens an
    operator. Real work occurs in each step. Pauses only add time, so the lower quartile counts; if
    it is 0, there is no work.

    Returns:
        The events, and the position among them of each event of the last step and of its end.
    """
    durations = [_host_work_ns(step.events) for step in alike]
    # Compare event by event: all steps have the same events, except host work.
    others = zip(
        *([e for e in s.events if not isinstance(e, HostWork)] for s in alike), strict=True
    )
    quartile = len(alike) // 4
    typical = {key: sorted(own[key] for own in durations)[quartile] for key in durations[-1]}
    last = alike[-1].events
    issued = [getattr(e, "name", "") for e in last if not isinstance(e, HostWork)] + [""]
    num_at = Counter(
        (at, issued[number]) for (number, _, at), time_ns in typical.items() if time_ns
    )
    events: list[Event] = []
    positions: list[int] = []
    noted: set[_WorkKey] = set()
    position = 0
    for event in last:
        positions.append(len(events))
        if not isinstance(event, HostWork):
            position += 1
            times = [same.host_ns for same in next(others) if isinstance(same, Op)]
            if times:
                event = replace(event, host_ns=sorted(times)[quartile])
            events.append(event)
            continue
        key = (position, event.kind, event.location)
        typical_ns = typical[key]
        is_repeated = num_at[event.location, issued[position]] >= _LEAST_PAUSES
        is_work = event.kind != "script" or is_repeated or typical_ns >= SCRIPT_GAP_NS
        if typical_ns and is_work and key not in noted:
            events.append(replace(event, duration_ns=typical_ns))
        noted.add(key)
    return events, [*positions, len(events)]


def _host_work_ns(events: list[Event]) -> Counter[_WorkKey]:
    """Return the duration of host work, by number of events before it, kind and line."""
    durations: Counter[_WorkKey] = Counter()
    position = 0
    for event in events:
        if isinstance(event, HostWork):
            durations[position, event.kind, event.location] += event.duration_ns
        else:
            position += 1
    return durations


def compare_shapes(steps: Sequence[Sequence[Event]], chosen: Sequence[Event]) -> RunFacts:
    """Return the number of shapes among the steps with the typical step's operators.

    Only operators on the device outside the update count: the first update creates the optimizer's
    state, and parameters keep their shapes.

    Args:
        steps: The events of each recorded step.
        chosen: The events of the typical step.
    """
    names = [op.name for op in _compared(chosen)]
    alike = [ops for ops in map(_compared, steps) if [op.name for op in ops] == names]
    convolutions = {
        tuple(shapes_of(op) for op in ops if op.name.startswith("aten.convolution."))
        for ops in alike
    }
    varying = (ops[0] for ops in zip(*alike, strict=True) if len(set(map(shapes_of, ops))) > 1)
    first = next(varying, None)
    return RunFacts(
        num_shapes=len({tuple(map(shapes_of, ops)) for ops in alike}),
        num_convolution_shapes=len(convolutions - {()}),
        shapes_vary_at=None if first is None else first.location,
    )


def _compared(events: Sequence[Event]) -> list[Op]:
    return [
        event
        for event in events
        if isinstance(event, Op)
        and not event.is_on_host
        and event.phase in (Phase.FORWARD, Phase.BACKWARD)
    ]


def shapes_of(op: Op) -> _Shapes:
    """Return the shapes of an operator's dense inputs.

    Sparse inputs vary in their number of values, but no compilation or choice depends on it.
    """
    return tuple(spec.shape for spec in op.inputs if not spec.is_sparse)

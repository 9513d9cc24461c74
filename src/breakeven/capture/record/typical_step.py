"""Which recorded step is typical of all, and what of it is typical of those that do the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median_high

import msgspec
from msgspec.structs import replace

from breakeven.capture.messages import LoaderUse
from breakeven.capture.record.event_log import SCRIPT_GAP_NS, StepLog
from breakeven.trace import Event, HostWork, Location, Op, Phase, RunFacts, num_micro_batches

# Short pauses are work of the script if one line has so many of them before the same operator. A
# framework trains in one line, with many pauses of its own before operators of all kinds.
_LEAST_PAUSES = 8

_Shapes = tuple[tuple[int, ...], ...]
_WorkKey = tuple[int, str, Location | None]


class Segment(msgspec.Struct, kw_only=True):
    """What was recorded between two updates; joined, of a whole step.

    Args:
        log: What was noted.
        peak_bytes: Largest sum of the device's live memory within it.
        live_bytes: That at its end.
        loader: What it took from the loader that it used most.
        num_backwards: Backward passes.
        is_whole: Whether it was recorded from its beginning.
    """

    log: StepLog
    peak_bytes: int
    live_bytes: int
    loader: LoaderUse | None
    num_backwards: int
    is_whole: bool

    @property
    def events(self) -> list[Event]:
        """Return what happened, in the order in which the host issues it."""
        return self.log.events

    @property
    def uses_device(self) -> bool:
        """Return whether anything at all happens on the device."""
        return any(isinstance(event, Op) and not event.is_on_host for event in self.events)

    @property
    def has_graph(self) -> bool:
        """Return whether a CUDA graph runs any of the step."""
        return any(isinstance(event, Op) and event.is_replayed for event in self.events)

    @property
    def batch_size(self) -> int | None:
        """Return the samples: what its loader yields, or the inputs of its model calls."""
        if self.loader is not None:
            return self.loader.batch_size * self.loader.batches_per_step
        inputs = self.log.model_inputs
        calls = [call.noted for call in self.log.model_calls]
        if len(inputs) > 1 and len(inputs) == num_micro_batches(self.events, calls):
            return sum(inputs)
        # With other calls (time steps, parts of a GAN) nothing says which of them counts.
        return inputs[0] if len(inputs) == 1 else None


def join(parts: list[Segment]) -> Segment:
    """Return the segments of one step as one."""
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
    """Return the steps that do what is typical; the last of them stands for all.

    A script may warm up on the CPU, or time both. Steps repeat themselves but for the ones at the
    end of an epoch: the most frequent sequence of operators is typical, of equally frequent ones
    the latest. Where most steps differ, as those of an adaptive solver, one of middle length is.
    """
    candidates: Sequence[Segment] = [step for step in steps if step.uses_device] or steps
    # Before a script captures a CUDA graph, it makes steps without one.
    candidates = [step for step in candidates if step.has_graph] or candidates
    # Work of the host is not compared: on a busy machine any pause looks like it.
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
    return [step for step, own in zip(candidates, hashes, strict=True) if own == typical]


def with_typical_host_times(alike: list[Segment]) -> tuple[list[Event], list[int]]:
    """Return the last step's events, with what is typical of all of them for the host's times.

    A pause of the operating system looks like work of the script once, or is part of an operator;
    work is there each time. Pauses only ever add, so the lower quartile of all steps counts, and
    there is no work where that is 0.

    Returns:
        The events, and for each of the last step, and for its end, the position among them.
    """
    durations = [_host_work_ns(step.events) for step in alike]
    # The same events one by one, as all steps have the same but for the work of the host.
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
    """Return the duration of host work, by the events before it, its kind and its line."""
    durations: Counter[_WorkKey] = Counter()
    position = 0
    for event in events:
        if isinstance(event, HostWork):
            durations[position, event.kind, event.location] += event.duration_ns
        else:
            position += 1
    return durations


def compare_shapes(steps: Sequence[Sequence[Event]], chosen: Sequence[Event]) -> RunFacts:
    """Return how many shapes the steps had that run the operators of the typical one.

    Only operators of the device outside of the update are compared: the first update makes the
    optimizer's state, and shapes of parameters do not change.

    Args:
        steps: The events of each recorded step.
        chosen: Those of the typical one.
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
    """Return the shapes of an operator's inputs, but for sparse ones.

    How many values they store differs from batch to batch, and nothing is compiled or chosen by it.
    """
    return tuple(spec.shape for spec in op.inputs if not spec.is_sparse)

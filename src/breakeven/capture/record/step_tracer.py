"""Collect recorded steps and choose the typical one: for the traced run."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from statistics import median_high
from time import perf_counter_ns
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from breakeven.capture.answers import TracedRun
from breakeven.capture.load.loader_watch import LoaderWatch
from breakeven.capture.record.recorder import StepRecorder
from breakeven.capture.record.typical_step import Segment, compare_shapes, join, shapes_of
from breakeven.capture.record.update_watch import Boundary
from breakeven.capture.redirect import COMPILE_IGNORED
from breakeven.errors import Caveat
from breakeven.timing import find_round_ends
from breakeven.trace import NEVER_ON_DEVICE, Event, HostWork, Op, Settings, StepTrace

_MAX_STEPS = 10
# Longer than this, and three steps must do: one that sets up the optimizer's state, one that
# begins with what is done every so many steps, and so in the first (logging), one like the rest.
_ENOUGH_NS = 500_000_000
# Longer than this, and two must do.
_TOO_LONG_NS = 5_000_000_000
# A script that evaluates its model after the first update, or the first epoch, does so once or
# twice before it trains on.
_MOST_EVALUATIONS = 2


_OWN_UPDATES: dict[Boundary, list[Caveat]] = {
    Boundary.OPTIMIZER: [],
    Boundary.UPDATE: [
        Caveat(
            code="own-update",
            message="no optimizer of torch is stepped: a step is what lies between two updates of "
            "the parameters",
        )
    ],
    Boundary.BACKWARD: [
        Caveat(
            code="own-update",
            message="no optimizer of torch is stepped, and no parameter written to: a step is what "
            "lies between two backward passes",
        )
    ],
    Boundary.GRADIENT: [
        Caveat(
            code="no-update",
            message="gradients are computed, but no parameter is updated: a step is what lies "
            "between two backward passes",
        )
    ],
}


class StepTracer:
    """Cuts the recorder's events at updates and puts steps together from the pieces.

    What precedes the end of the first backward pass is not recorded: a script prepares itself at
    its own speed. What is left of that step does not count as a whole one.

    Args:
        recorder: Records the events.
        loaders: Says what each step took from DataLoaders.
    """

    def __init__(self, recorder: StepRecorder, loaders: LoaderWatch) -> None:
        self._recorder = recorder
        self._loaders = loaders
        self._optimizers: list[int] = []
        self._segments: deque[Segment] = deque(maxlen=16 * _MAX_STEPS)
        self._boundary = Boundary.GRADIENT
        self._is_whole = False
        self._num_backwards = 0
        self._num_evaluations = 0
        self._first_ns = 0
        self.is_compiled = False
        # Updates of steps that did not use the device, before those that do.
        self.num_host_calls = 0
        # Updates that were forgotten, for whatever reason.
        self._num_forgotten = 0

    @property
    def num_calls(self) -> int:
        """Return the updates so far, of the kind that ends a step."""
        return self.num_host_calls + len(self._optimizers)

    @property
    def boundary(self) -> Boundary:
        """Return what ended the steps so far."""
        return self._boundary

    @property
    def uses_device(self) -> bool:
        """Return whether a recorded step so far uses the device."""
        return any(segment.uses_device for segment in self._segments)

    @property
    def is_blind(self) -> bool:
        """Return whether steps were recorded in which there is no operator."""
        events = [event for segment in self._segments for event in segment.events]
        return len(self._segments) > 1 and not any(isinstance(event, Op) for event in events)

    def round_ends(self) -> tuple[int, ...]:
        """Return the positions of the updates that end a step, among all that were marked."""
        ends = find_round_ends(self._optimizers)
        return tuple(self._num_forgotten + position for position in ends)

    def backwards_per_step(self) -> int:
        """Return the backward passes of a step; at least one."""
        counts = [step.num_backwards for step in self._rounds() if step.is_whole]
        return max(1, median_high(counts)) if counts else 1

    def note_backward(self) -> None:
        """Note the end of a backward pass, from which on everything is recorded."""
        self._num_backwards += 1
        if not self._recorder.is_recording:
            self._recorder.start_recording()

    def leave_out(self) -> None:
        """Record nothing up to the next update: the script evaluates its model, and that at length.

        A step that does so each time is recorded as it is.
        """
        if self._num_evaluations < _MOST_EVALUATIONS:
            self._num_evaluations += 1
            self._is_whole = False
            self._recorder.is_recording = False

    def count_host_step(self) -> None:
        """Note an update while nothing is recorded, as the device is not used."""
        self.num_host_calls += 1
        self._num_forgotten += 1

    def forget_host_steps(self) -> None:
        """Begin anew, since the steps so far did not use the device."""
        self.num_host_calls += len(self._optimizers) + 1
        self._num_forgotten += 1
        self._start_over()
        self._recorder.start_recording()
        self._is_whole = True

    def mark(self, optimizer: int, boundary: Boundary = Boundary.OPTIMIZER) -> bool:
        """Note an update; return whether there are recorded steps enough.

        Args:
            optimizer: Number of the optimizer, or of what else was updated.
            boundary: What it is: not lower than those before.
        """
        if boundary > self._boundary:
            self._boundary = boundary
            self.num_host_calls = 0
            self._start_over()
        self._first_ns = self._first_ns or perf_counter_ns()
        self._optimizers.append(optimizer)
        self._segments.append(
            Segment(
                optimizer=optimizer,
                events=self._recorder.events,
                peak_bytes=self._recorder.devices.peak_device_bytes,
                loader=self._loaders.end_step(),
                live_bytes=self._recorder.devices.device_bytes,
                model_inputs=self._recorder.model_inputs,
                model_calls=[(0, call) for call in self._recorder.model_calls],
                reached=self._recorder.origins.reached,
                is_anomaly_checked=self._recorder.is_anomaly_checked,
                num_backwards=self._num_backwards,
                is_whole=self._is_whole,
            )
        )
        num_steps = len(self.round_ends())
        self._recorder.start_recording()
        self._num_backwards = 0
        self._is_whole = True
        if num_steps < 2 or not self._has_whole_step():
            return False
        elapsed_ns = perf_counter_ns() - self._first_ns
        enough_ns = _ENOUGH_NS if num_steps > 2 else _TOO_LONG_NS
        return num_steps >= _MAX_STEPS or elapsed_ns > enough_ns

    def result(self, num_parameters: int) -> TracedRun | None:
        """Return the typical step, or None when none was completed.

        Args:
            num_parameters: Elements that the optimizers update.
        """
        rounds = self._rounds()
        steps = [step for step in rounds if step.is_whole]
        if not any(isinstance(event, Op) for step in steps for event in step.events):
            return None
        # A script may warm up on the CPU, or time both. Steps repeat themselves but for the ones
        # at the end of an epoch: the most frequent sequence of operators is typical, of equally
        # frequent ones the latest.
        candidates = [step for step in steps if step.uses_device] or steps
        # Before a script captures a CUDA graph, it makes steps without one.
        candidates = [step for step in candidates if step.has_graph] or candidates
        # Work of the host is not compared: on a busy machine any pause looks like it.
        signatures = [
            tuple(_signature(event) for event in step.events if not isinstance(event, HostWork))
            for step in candidates
        ]
        typical = _typical(list(map(hash, signatures)), list(map(len, signatures)))
        alike = [
            step
            for step, signature in zip(candidates, signatures, strict=True)
            if hash(signature) == typical
        ]
        chosen = alike[-1]
        loader = chosen.loader
        caveats = list(_OWN_UPDATES[self._boundary])
        if self._recorder.is_moving:
            caveats.append(NEVER_ON_DEVICE)
        if self.is_compiled:
            caveats.append(COMPILE_IGNORED)
        caveats += self._recorder.one_gpu.caveats()
        typical_events, positions = _with_typical_host_times(alike)
        numbers = _used_stacks(typical_events, chosen)
        origins = self._recorder.origins
        used = [number for number in numbers if number >= 0]
        frames = tuple(origins.frames[number] for number in used)
        trace = StepTrace(
            events=tuple(_renumbered(event, numbers) for event in typical_events),
            stacks=tuple(origins.stacks[number] for number in used),
            frames=frames if any(frames) else msgspec.UNSET,
            batch_size=_batch_size(chosen),
            num_parameters=num_parameters,
            peak_memory_bytes=chosen.peak_bytes,
            settings=_settings(self._recorder.autocast_dtype, self.is_compiled),
            faults=tuple(self._recorder.faults.values()),
            caveats=tuple(caveats),
            torch_version=str(torch.__version__),
            facts=replace(
                compare_shapes([step.events for step in steps], chosen.events),
                num_steps=len(rounds),
                model_calls=tuple(
                    call.as_fact(positions, offset, numbers, chosen.reached)
                    for offset, call in chosen.model_calls
                ),
                is_anomaly_checked=chosen.is_anomaly_checked,
                live_bytes=tuple(step.live_bytes for step in rounds),
            ),
        )
        has_optimizer = self._boundary is Boundary.OPTIMIZER
        return TracedRun(
            trace=trace,
            loader=loader,
            backwards_per_step=0 if has_optimizer else self.backwards_per_step(),
            num_host_steps=self.num_host_calls,
        )

    def _has_whole_step(self) -> bool:
        """Return whether the segments of a round have all been recorded as a whole."""
        offset = len(self._optimizers) - len(self._segments)
        flags = [True] * offset + [segment.is_whole for segment in self._segments]
        ends = [-1, *find_round_ends(self._optimizers)]
        return any(
            start + 1 >= offset and all(flags[start + 1 : end + 1])
            for start, end in itertools.pairwise(ends)
        )

    def _start_over(self) -> None:
        self._num_forgotten += len(self._optimizers)
        self._optimizers.clear()
        self._segments.clear()
        self._is_whole = False
        self._first_ns = 0

    def _rounds(self) -> list[Segment]:
        """Join the segments of each round into one."""
        offset = len(self._optimizers) - len(self._segments)
        segments = list(self._segments)
        steps: list[Segment] = []
        start = 0
        for end in find_round_ends(self._optimizers):
            if end < offset:
                continue
            parts = segments[start : end - offset + 1]
            start = end - offset + 1
            steps.append(join(parts))
        return steps


def _typical(signatures: list[int], lengths: list[int]) -> int:
    """Return the most frequent signature; where most steps differ, one of middle length.

    An adaptive solver takes now more, now fewer steps for an update. Of equals the latest counts.
    """
    found, count = Counter(reversed(signatures)).most_common(1)[0]
    if 2 * count >= len(signatures):
        return found
    middle = median_high(lengths)
    return [own for own, length in zip(signatures, lengths, strict=True) if length == middle][-1]


def _batch_size(step: Segment) -> int | None:
    """Return the samples of a step: what its loader yields, or the input of its one model call."""
    if step.loader is not None:
        return step.loader.batch_size * step.loader.batches_per_step
    # With several calls (time steps, parts of a GAN) nothing says which of them counts.
    return step.model_inputs[0] if len(step.model_inputs) == 1 else None


def _signature(event: Event) -> Any:
    if isinstance(event, Op):
        return (event.name, event.device, shapes_of(event))
    return type(event).__name__


def _with_typical_host_times(alike: list[Segment]) -> tuple[list[Event], list[int]]:
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
    events: list[Event] = []
    positions: list[int] = []
    noted: set[tuple[int, str]] = set()
    position = 0
    for event in alike[-1].events:
        positions.append(len(events))
        if not isinstance(event, HostWork):
            position += 1
            times = [same.host_ns for same in next(others) if isinstance(same, Op)]
            if times:
                event = replace(event, host_ns=sorted(times)[quartile])
            events.append(event)
            continue
        key = (position, event.kind)
        typical_ns = sorted(own[key] for own in durations)[quartile]
        if typical_ns and key not in noted:
            events.append(replace(event, duration_ns=typical_ns))
        noted.add(key)
    return events, [*positions, len(events)]


def _used_stacks(events: list[Event], step: Segment) -> dict[int, int]:
    """Return a new number for each stack that an event or a call of a model names; -1 stays."""
    used = {event.stack for event in events} | {call.stack for _, call in step.model_calls}
    numbers = {old: new for new, old in enumerate(sorted(used - {-1}))}
    return {**numbers, -1: -1}


def _renumbered(event: Event, numbers: dict[int, int]) -> Event:
    number = numbers[event.stack]
    return event if number == event.stack else replace(event, stack=number)


def _host_work_ns(events: list[Event]) -> Counter[tuple[int, str]]:
    """Return the duration of host work, by the number of other events before it and its kind."""
    durations: Counter[tuple[int, str]] = Counter()
    position = 0
    for event in events:
        if isinstance(event, HostWork):
            durations[position, event.kind] += event.duration_ns
        else:
            position += 1
    return durations


def _settings(autocast_dtype: str, is_compiled: bool) -> Settings:
    return Settings(
        allow_tf32_matmul=torch.get_float32_matmul_precision() != "highest",
        allow_tf32_convolution=torch.backends.cudnn.allow_tf32,
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        autocast_dtype=autocast_dtype,
        is_compiled=is_compiled,
    )

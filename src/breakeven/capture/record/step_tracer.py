"""Collects recorded steps and chooses the typical one, for the traced run."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from statistics import median_high
from time import perf_counter_ns

import msgspec
import torch
from msgspec.structs import replace

from breakeven.capture.messages import LoaderUse, TracedRun
from breakeven.capture.pretend.redirect import COMPILE_IGNORED
from breakeven.capture.record.recorder import StepRecorder
from breakeven.capture.record.typical_step import (
    Segment,
    compare_shapes,
    join,
    typical_of,
    with_typical_host_times,
)
from breakeven.capture.record.update_watch import Boundary
from breakeven.errors import Caveat
from breakeven.timing import find_round_ends
from breakeven.trace import NEVER_ON_DEVICE, Op, ProcessGroup, Settings, StepTrace

_MAX_STEPS = 10
# After this time three steps suffice. One sets up the optimizer's state. One begins with periodic
# work (logging), which is due at the first step too. One is like the rest.
_ENOUGH_NS = 500_000_000
# After this time two steps suffice. If a few steps contained no typical one, record for this time.
_TOO_LONG_NS = 20_000_000_000
# A script may evaluate its model after the first update or epoch: once or twice before it continues
# to train.
_MOST_EVALUATIONS = 2
# Limits on recording the work between two steps: some tens of calls of a small model.
_MOST_BETWEEN_EVENTS = 2_000
_MOST_BETWEEN_NS = 1_500_000_000


_OWN_UPDATES = {
    Boundary.UPDATE: Caveat(
        code="own-update",
        message="no torch optimizer is stepped: a step is the time between two updates of the "
        "parameters",
    ),
    Boundary.BACKWARD: Caveat(
        code="own-update",
        message="no torch optimizer is stepped, and no parameter changes: a step is the time "
        "between two backward passes",
    ),
    Boundary.GRADIENT: Caveat(
        code="no-update",
        message="gradients are computed, but no parameter is updated: a step is the time "
        "between two backward passes",
    ),
}


class StepTracer:
    """Cuts the recorder's events at updates, and joins the pieces into steps.

    Recording starts at the end of the first backward pass, so a script prepares at its own speed.
    The rest of that step does not count as a whole one.

    Args:
        recorder: Records the events.
        end_loading: Ends a step, and returns its use of DataLoaders.
        records_longer: Whether to take more than three steps if these take long.
        records_after: Record the work after this number of updates instead of a step; 0 for a step.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        end_loading: Callable[[], LoaderUse | None],
        *,
        records_longer: bool = False,
        records_after: int = 0,
    ) -> None:
        self._records_after = records_after
        # Calls of torch before that recording, and in it once it holds enough.
        self._num_before = 0
        self._num_recorded: int | None = None
        self._records_longer = records_longer
        self._recorder = recorder
        self._end_loading = end_loading
        self._optimizers: list[int] = []
        self._segments: deque[Segment] = deque(maxlen=16 * _MAX_STEPS)
        # Kind of event that ended the steps so far.
        self.boundary = Boundary.GRADIENT
        self._is_whole = False
        self._num_backwards = 0
        self._num_evaluations = 0
        self._first_ns = 0
        self.is_compiled = False
        # Updates of another kind, which were discarded.
        self._num_forgotten = 0

    @property
    def num_calls(self) -> int:
        """Return the number of updates so far, of the kind that ends a step."""
        return len(self._optimizers)

    @property
    def is_blind(self) -> bool:
        """Return whether steps were recorded without any operator."""
        events = [event for segment in self._segments for event in segment.events]
        return len(self._segments) > 1 and not any(isinstance(event, Op) for event in events)

    def round_ends(self) -> tuple[int, ...]:
        """Return the positions of the updates that end a step, among all marked updates."""
        ends = find_round_ends(self._optimizers)
        return tuple(self._num_forgotten + position for position in ends)

    def note_backward(self) -> None:
        """Note the end of a backward pass; after the first, recording starts."""
        self._num_backwards += 1
        if not self._recorder.is_recording and not self._records_after:
            self._recorder.start_recording()

    def look(self) -> None:
        """Stop recording until the next update if more events are useless.

        That holds for a long evaluation of the model, unless each step evaluates it. It also holds
        once the recording of work between two steps is long enough.
        """
        if self._records_after:
            is_long = perf_counter_ns() - self._first_ns > _MOST_BETWEEN_NS
            if is_long or len(self._recorder.events) >= _MOST_BETWEEN_EVENTS:
                self._num_recorded = self._recorder.num_calls - self._num_before
                self._recorder.is_recording = False
        elif self._recorder.is_evaluating() and self._num_evaluations < _MOST_EVALUATIONS:
            self._num_evaluations += 1
            self._is_whole = False
            self._recorder.is_recording = False

    def mark(self, optimizer: int, boundary: Boundary = Boundary.OPTIMIZER) -> bool:
        """Note an update; return whether the recorded steps suffice.

        Args:
            optimizer: Number of the optimizer, or of the parameters that were updated.
            boundary: Kind of the update; lower kinds than before must not be passed.
        """
        if boundary > self.boundary:
            self.boundary = boundary
            self._num_forgotten += len(self._optimizers)
            self._optimizers.clear()
            self._segments.clear()
            self._is_whole = False
            self._first_ns = 0
        self._optimizers.append(optimizer)
        segment = Segment(
            log=self._recorder.step,
            peak_bytes=self._recorder.devices.peak_device_bytes,
            live_bytes=self._recorder.devices.device_bytes,
            loader=self._end_loading(),
            num_backwards=self._num_backwards,
            is_whole=self._is_whole or bool(self._records_after),
        )
        if len(self._optimizers) < self._records_after:
            return False
        self._first_ns = self._first_ns or perf_counter_ns()
        if len(self._optimizers) == self._records_after:
            self._num_before = self._recorder.num_calls
            self._recorder.start_recording()
            return False
        self._segments.append(segment)
        if self._records_after:
            return True
        num_steps = len(self.round_ends())
        self._recorder.start_recording()
        self._num_backwards = 0
        self._is_whole = True
        if num_steps < 2 or not any(step.is_whole for step in self._rounds()):
            return False
        elapsed_ns = perf_counter_ns() - self._first_ns
        are_three_enough = num_steps > 2 and not self._records_longer
        enough_ns = _ENOUGH_NS if are_three_enough else _TOO_LONG_NS
        return num_steps >= _MAX_STEPS or elapsed_ns > enough_ns

    def result(self, num_parameters: int) -> TracedRun | None:
        """Return the typical step, or None without a complete one.

        Args:
            num_parameters: Number of elements that the optimizers update.
        """
        rounds = list(self._segments) if self._records_after else self._rounds()
        steps = [step for step in rounds if step.is_whole]
        if not any(isinstance(event, Op) for step in steps for event in step.events):
            return None
        alike = typical_of(steps)
        chosen = alike[-1]
        has_optimizer = self.boundary is Boundary.OPTIMIZER
        backwards = [step.num_backwards for step in steps]
        caveats = [] if has_optimizer else [_OWN_UPDATES[self.boundary]]
        if self._recorder.is_moving:
            caveats.append(NEVER_ON_DEVICE)
        if self.is_compiled:
            caveats.append(COMPILE_IGNORED)
        one_gpu = self._recorder.one_gpu
        one_gpu.note_exchanges(chosen.log.collectives)
        caveats += one_gpu.caveats()
        events, positions = with_typical_host_times(alike)
        calls = chosen.log.model_calls
        # Stacks of an event or a model call get new numbers; -1 stays.
        named = (*events, *(call.noted for call in calls))
        used = sorted({each.stack for each in named} - {-1})
        numbers = {old: new for new, old in enumerate(used)} | {-1: -1}
        origins = self._recorder.origins
        frames = tuple(origins.frames[number] for number in used)
        trace = StepTrace(
            events=tuple(replace(event, stack=numbers[event.stack]) for event in events),
            stacks=tuple(origins.stacks[number] for number in used),
            frames=frames if any(frames) else msgspec.UNSET,
            group=ProcessGroup(
                num_processes=one_gpu.num_processes, collectives=tuple(chosen.log.collectives)
            )
            if one_gpu.num_processes
            else msgspec.UNSET,
            batch_size=chosen.batch_size,
            num_parameters=num_parameters,
            peak_memory_bytes=chosen.peak_bytes,
            settings=Settings(
                allow_tf32_matmul=torch.get_float32_matmul_precision() != "highest",
                allow_tf32_convolution=torch.backends.cudnn.allow_tf32,
                cudnn_benchmark=torch.backends.cudnn.benchmark,
                autocast_dtype=self._recorder.autocast_dtype,
                is_compiled=self.is_compiled,
            ),
            faults=tuple(self._recorder.faults.values()),
            caveats=tuple(caveats),
            torch_version=str(torch.__version__),
            facts=replace(
                compare_shapes([step.events for step in steps], chosen.events),
                num_steps=len(rounds),
                model_calls=tuple(
                    call.as_fact(positions, numbers, chosen.log.reached) for call in calls
                ),
                is_anomaly_checked=chosen.log.is_anomaly_checked,
                live_bytes=tuple(step.live_bytes for step in rounds),
            ),
        )
        return TracedRun(
            trace=trace,
            loader=chosen.loader,
            backwards_per_step=0 if has_optimizer else median_high(max(1, n) for n in backwards),
            recorded_fraction=1.0
            if self._num_recorded is None
            else self._num_recorded / (self._recorder.num_calls - self._num_before or 1),
        )

    def _rounds(self) -> list[Segment]:
        """Join the segments of each round."""
        offset = len(self._optimizers) - len(self._segments)
        segments = list(self._segments)
        ends = [end + 1 - offset for end in find_round_ends(self._optimizers) if end >= offset]
        return [join(segments[start:end]) for start, end in itertools.pairwise([0, *ends])]

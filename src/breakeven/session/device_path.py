"""The step as a GPU would run it, with durations that were measured rather than traced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from msgspec.structs import replace

from breakeven.capture import PlainRun, TracedRun
from breakeven.device import HostSpec
from breakeven.simulate import (
    MeasuredStep,
    Program,
    anchored_host,
    build_program,
    predict_cpu_step,
    scaled_host,
)
from breakeven.timing import BUSY_FRACTION, StepPhases
from breakeven.trace import Event, GraphLaunch, HostWork, Op, Phase, StepTrace

# What it adds to the uncertainty of a host that its costs were measured beside other work, whose
# data are in its caches.
_BUSY_LOG_SIGMA = 0.1


# A step that would take so many times as long as it did is another one, which shows nothing of the
# host's work; and what that adds to the host's uncertainty.
_OTHER_PATH = 1.6
_OTHER_PATH_LOG_SIGMA = 0.25


class DevicePath:
    """Prepares traces of one script for prediction.

    A recorder slows down what it sees, so durations of the host come from the plain run: the
    data loader's own time, and for the script's other work an upper limit, the part of the plain
    step that neither operators nor the loader account for.

    Args:
        traced: The recorded step.
        plain: The same step, timed.
    """

    def __init__(self, traced: TracedRun, plain: PlainRun) -> None:
        trace = traced.trace
        self._data_ratio = _data_ratio(traced, plain)
        operators_ns = sum(op.host_ns for op in trace.ops)
        data_ns = plain.loader.wait_ns if plain.loader else 0.0
        rest_ns = max(0.0, plain.measurement.own_ns - operators_ns - data_ns)
        script_ns = _total_ns(trace.events, "script")
        self._script_ratio = min(1.0, rest_ns / script_ns) if script_ns else 1.0
        # What torch's own optimizers do in Python is part of the update; it looks like work of the
        # script, since it takes longer while it is recorded.
        optimizers = trace.facts.optimizers
        is_known = plain.phases is not None and plain.phases.optimizer_ns > 0
        self._knows_update = is_known and all(each.is_from_torch for each in optimizers)
        self._traced = traced
        self._plain = plain

    @cached_property
    def step(self) -> StepTrace:
        """Return the recorded step, prepared."""
        return self.prepare(self._traced)

    @cached_property
    def program(self) -> Program:
        """Return the prepared step with its kernels."""
        return build_program(self.step)

    def feeding(self, host: HostSpec, here: HostSpec) -> HostSpec:
        """Return ``host`` with what the measured step shows of its work.

        Args:
            host: What issues the work of the GPUs.
            here: The machine that measured the step, with its costs measured as well.
        """
        is_replayed = any(isinstance(event, GraphLaunch) for event in self.step.events)
        # A graph's operators ran one by one on the CPU, which shows nothing of their replay.
        if self._plain.phases is None or self._plain.processor != here.name or is_replayed:
            return host
        if self.is_other_path(here):
            return replace(host, log_sigma=math.hypot(host.log_sigma, _OTHER_PATH_LOG_SIGMA))
        anchored = self._anchored(here, self._plain.phases)
        if here.load_fraction > BUSY_FRACTION:
            log_sigma = math.hypot(anchored.log_sigma, _BUSY_LOG_SIGMA)
            anchored = replace(anchored, log_sigma=log_sigma)
        return anchored if host.is_measured else scaled_host(host, here, anchored)

    def is_other_path(self, here: HostSpec) -> bool:
        """Return whether the step that was recorded cannot be the one that was timed.

        What is recorded would take this CPU far longer: the script does more on a GPU.

        Args:
            here: The machine that timed the step, with its costs measured.
        """
        if self._plain.processor != here.name:
            return False
        recorded_ns = predict_cpu_step(self.program, here).step_ns
        return recorded_ns > _OTHER_PATH * self._plain.measurement.own_ns

    def _anchored(self, host: HostSpec, phases: StepPhases) -> HostSpec:
        program = self.program
        step_ns = self._plain.measurement.own_ns
        # Of a step that waited, its parts did so too.
        own_share = step_ns / self._plain.measurement.median_ns
        backward_ns = own_share * phases.backward_ns
        update_ns = own_share * phases.optimizer_ns
        if not update_ns:  # the script updates its weights itself, before the next step
            update_ns = predict_cpu_step(program, host).optimizer_ns
        # What the script does by itself is predicted as it is.
        after_backward = self.step.events[_end_of_backward(self.step) :]
        script_after_ns = _total_ns(after_backward, "script")
        script_before_ns = _total_ns(self.step.events, "script") - script_after_ns
        data_ns = self._plain.loader.wait_ns if self._plain.loader else 0.0
        before_ns = step_ns - backward_ns - update_ns
        return anchored_host(
            program,
            host,
            MeasuredStep(
                forward_ns=max(0.0, before_ns - script_before_ns - data_ns),
                backward_ns=backward_ns,
                optimizer_ns=max(0.0, update_ns - script_after_ns),
            ),
        )

    def prepare(self, traced: TracedRun) -> StepTrace:
        """Return the step to predict."""
        return replace(
            traced.trace,
            events=tuple(
                replace(event, duration_ns=round(event.duration_ns * self._ratio(event)))
                if isinstance(event, HostWork)
                else event
                for event in traced.trace.events
            ),
        )

    def _ratio(self, work: HostWork) -> float:
        """Return what work takes of what it took while it was recorded."""
        match work.kind:
            case "data":
                return self._data_ratio
            case "script":
                is_known = self._knows_update and work.phase is Phase.OPTIMIZER
                return 0.0 if is_known else self._script_ratio
            case _:
                return 1.0


def _data_ratio(traced: TracedRun, plain: PlainRun) -> float:
    """Return the loader's time in the plain run over that in the traced one."""
    loader, traced_ns = plain.loader, _total_ns(traced.trace.events, "data")
    if loader is None or not traced_ns:
        return 1.0
    if not loader.num_workers:
        return min(1.0, loader.wait_ns / traced_ns)
    # The traced run sees the work itself, but neither the queue between processes nor the cores
    # that workers share; and the plain run waits for what is left of it only.
    num_batches = len(_works(traced.trace.events, "data"))
    return loader.alone_ns * loader.num_workers * num_batches / traced_ns or 1.0


def _end_of_backward(trace: StepTrace) -> int:
    """Return the position after the last operator of a backward pass; the end without any."""
    found = (
        position
        for position, event in enumerate(trace.events, start=1)
        if isinstance(event, Op) and event.phase is Phase.BACKWARD
    )
    return max(found, default=len(trace.events))


def _works(events: Sequence[Event], kind: str) -> list[HostWork]:
    return [event for event in events if isinstance(event, HostWork) and event.kind == kind]


def _total_ns(events: Sequence[Event], kind: str) -> int:
    return sum(work.duration_ns for work in _works(events, kind))

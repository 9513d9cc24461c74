"""The step as a GPU would run it, with durations that were measured rather than traced."""

from __future__ import annotations

from msgspec.structs import replace

from breakeven.capture import PlainRun, TracedRun
from breakeven.device import HostSpec
from breakeven.simulate import (
    MeasuredStep,
    anchored_host,
    build_program,
    predict_cpu_step,
    scaled_host,
)
from breakeven.timing import StepPhases
from breakeven.trace import HostWork, Phase, StepTrace


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
        rest_ns = max(0.0, plain.measurement.median_ns - operators_ns - data_ns)
        script_ns = _duration_ns(trace, "script")
        self._script_ratio = min(1.0, rest_ns / script_ns) if script_ns else 1.0
        # The Python of an update is known as part of it.
        self._knows_update = plain.phases is not None and plain.phases.optimizer_ns > 0
        self._step = self.prepare(traced)
        self._plain = plain

    def feeding(self, host: HostSpec, here: HostSpec) -> HostSpec:
        """Return ``host`` with what the measured step tells of its work.

        Args:
            host: What issues the work of the GPUs.
            here: The machine that measured the step, with its costs measured as well.
        """
        if self._plain.phases is None or self._plain.processor != here.name:
            return host
        anchored = self._anchored(here, self._plain.phases)
        return anchored if host.is_measured else scaled_host(host, anchored)

    def _anchored(self, host: HostSpec, phases: StepPhases) -> HostSpec:
        program = build_program(self._step)
        optimizer_ns = phases.optimizer_ns
        if not optimizer_ns:  # the script updates its weights itself, before the next step
            optimizer_ns = predict_cpu_step(program, host).optimizer_ns
        data_ns = self._plain.loader.wait_ns if self._plain.loader else 0.0
        others_ns = phases.backward_ns + optimizer_ns + data_ns + _duration_ns(self._step, "script")
        forward_ns = max(0.0, self._plain.measurement.median_ns - others_ns)
        return anchored_host(
            program,
            host,
            MeasuredStep(
                forward_ns=forward_ns, backward_ns=phases.backward_ns, optimizer_ns=optimizer_ns
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
    loader, traced_ns = plain.loader, _duration_ns(traced.trace, "data")
    if loader is None or not traced_ns:
        return 1.0
    if not loader.num_workers:
        return min(1.0, loader.wait_ns / traced_ns)
    # The traced run sees the work itself, but neither the queue between processes nor the cores
    # that workers share; and the plain run waits for what is left of it only.
    alone_ns = loader.alone_ns * loader.batches_per_step * loader.num_workers
    return alone_ns / traced_ns if alone_ns else 1.0


def _duration_ns(trace: StepTrace, kind: str) -> int:
    return sum(
        event.duration_ns
        for event in trace.events
        if isinstance(event, HostWork) and event.kind == kind
    )

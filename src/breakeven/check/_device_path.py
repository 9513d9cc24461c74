"""The step as a GPU would run it, with durations that were measured rather than traced."""

from __future__ import annotations

from msgspec.structs import replace

from breakeven.capture import PlainRun, TracedRun
from breakeven.trace import HostWork, StepTrace


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

    def prepare(self, traced: TracedRun) -> StepTrace:
        """Return the step to predict."""
        ratios = {"data": self._data_ratio, "script": self._script_ratio}
        return replace(
            traced.trace,
            events=tuple(
                replace(event, duration_ns=round(event.duration_ns * ratios.get(event.kind, 1.0)))
                if isinstance(event, HostWork)
                else event
                for event in traced.trace.events
            ),
        )


def _data_ratio(traced: TracedRun, plain: PlainRun) -> float:
    """Return the loader's time in the plain run over that in the traced one."""
    traced_ns = _duration_ns(traced.trace, "data")
    # With workers the plain run waits for them only; the traced one sees the work itself.
    if plain.loader is None or plain.loader.num_workers or not traced_ns:
        return 1.0
    return min(1.0, plain.loader.wait_ns / traced_ns)


def _duration_ns(trace: StepTrace, kind: str) -> int:
    return sum(
        event.duration_ns
        for event in trace.events
        if isinstance(event, HostWork) and event.kind == kind
    )

"""Cases that one trace serves: they differ in switches, in the copy, or in what is timed of it."""

from __future__ import annotations

from itertools import takewhile

from msgspec.structs import replace

from breakeven.errors import WorkloadError
from breakeven.trace import (
    Copy,
    NumberFormat,
    Phase,
    ScaledTrace,
    StepCase,
    StepTrace,
    TimedPhase,
)


def base_case(case: StepCase) -> StepCase:
    """Return the case whose trace `as_asked` turns into that of ``case``."""
    number_format, phase = case.number_format, case.phase
    if number_format is NumberFormat.TF32:
        number_format = NumberFormat.FP32
    if phase is TimedPhase.BACKWARD:
        phase = TimedPhase.FORWARD_BACKWARD
    has_backward = phase in (TimedPhase.TRAIN, TimedPhase.FORWARD_BACKWARD)
    return StepCase(
        workload=case.workload,
        phase=phase,
        number_format=number_format,
        optimizer=case.optimizer if phase is TimedPhase.TRAIN else "none",
        h2d="pageable",
        zeroes_gradients=case.zeroes_gradients and has_backward,
        channels_last=case.channels_last,
        attention=case.attention,
    )


def as_asked(base: tuple[StepTrace, StepTrace], case: StepCase) -> ScaledTrace:
    """Return the trace of ``case`` from that of its base case.

    Raises:
        WorkloadError: A copy of the batch is asked for, and the workload does not show its batch.
    """
    asked: list[StepTrace] = []
    is_tf32 = case.number_format is NumberFormat.TF32
    for trace in base:
        # A base case begins with the copies of its batch.
        copies = tuple(takewhile(lambda event: isinstance(event, Copy), trace.events))
        rest = trace.events[len(copies) :]
        if case.h2d != "none" and not copies:
            raise WorkloadError(
                f"{case.workload!r} does its own copies of the batch",
                hint="write h2d none, or let the function return (model, inputs, loss)",
            )
        if case.phase is TimedPhase.BACKWARD:
            wait = rest[-1]
            rest = (*(event for event in rest if event.phase is Phase.BACKWARD), wait)
        if case.phase is TimedPhase.BACKWARD or case.h2d == "none":
            copies = ()
        elif case.h2d == "pinned":  # in order not to wait
            copies = tuple(replace(copy, is_pinned=True, non_blocking=True) for copy in copies)
        settings = replace(
            trace.settings, allow_tf32_matmul=is_tf32, allow_tf32_convolution=is_tf32
        )
        asked.append(replace(trace, events=(*copies, *rest), settings=settings))
    return ScaledTrace(*asked)

"""What happens when within one step, as charts show it."""

from __future__ import annotations

from dataclasses import dataclass

from breakeven.simulate.replay import LAUNCH_QUEUE_DEPTH, Replay
from breakeven.simulate.scenario import Scenario
from breakeven.simulate.score import ON_DEVICE, price
from breakeven.simulate.tape import Tape


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What one event does on one of the timelines.

    Args:
        event: Position of the event in the trace.
        is_on_device: On which of the two.
        start_ns: Since the start of the step on the host.
        end_ns: End; on the host it includes waiting for the device.
    """

    event: int
    is_on_device: bool
    start_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step in steady state.

    Args:
        step_ns: From one step to the next.
        host_busy_ns: The host's own work within it.
        device_busy_ns: Kernels and copies within it.
        spans: What happens when, in the order of the events.
    """

    step_ns: float
    host_busy_ns: float
    device_busy_ns: float
    spans: tuple[Span, ...]


def timeline_of(
    tape: Tape, scenario: Scenario, *, queue_depth: int = LAUNCH_QUEUE_DEPTH
) -> Timeline:
    """Return one step of a tape in detail."""
    score = price(tape, scenario, is_merged=False)
    replay = Replay(score, queue_depth)
    period_ns = replay.settle()
    start_ns = replay.host_ns
    log = replay.logged(1)
    spans: list[Span] = []
    for row, point, passed in zip(score.rows.tolist(), score.points, log, strict=True):
        event = int(tape.rows.event[row])
        if passed.host_ns > passed.host_before_ns:
            spans.append(
                Span(
                    event=event,
                    is_on_device=False,
                    start_ns=passed.host_before_ns - start_ns,
                    end_ns=passed.host_ns - start_ns,
                )
            )
        if point[0] in ON_DEVICE:
            spans.append(
                Span(
                    event=event,
                    is_on_device=True,
                    start_ns=passed.start_ns - start_ns,
                    end_ns=passed.device_ns - start_ns,
                )
            )
    return Timeline(
        step_ns=score.step_ns(period_ns),
        host_busy_ns=score.host_ns,
        device_busy_ns=score.device_ns,
        spans=tuple(spans),
    )

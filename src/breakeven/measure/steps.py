"""Time a step that is a function."""

from __future__ import annotations

from collections.abc import Callable

from breakeven.measure.clock import HostClock
from breakeven.measure.step_timer import StepTimer
from breakeven.timing import Clock, Measurement


def measure_step(
    step: Callable[[], object], *, clock: Clock | None = None, budget_s: float = 1.0
) -> Measurement:
    """Call ``step`` until its time is known, and return the samples.

    Args:
        step: One training step; it is called some 5 to 2,000 times.
        clock: Reads the time and waits for the device; the host's own by default, which is right
            for the CPU. Pass `GpuClock` for steps on a GPU.
        budget_s: Seconds of steps that are enough when they are short.
    """
    timer = StepTimer(clock or HostClock(), budget_s)
    is_enough = timer.mark(-1)
    while not is_enough:
        step()
        is_enough = timer.mark(-1)
    measurement = timer.measurement()
    assert measurement is not None, "enough means at least two samples"
    return measurement

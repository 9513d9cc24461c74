"""What the kernels of a step take on the device, and what changes of them save."""

from __future__ import annotations

from collections.abc import Callable

from breakeven.advise.rule import RuleInput
from breakeven.cost import Kernel
from breakeven.simulate import Bound, Edit, Scenario, WhatIf

_WITHOUT_HOST_WORK = Scenario(without=frozenset({Bound.HOST_DATA}))
_MIN_BUSY_FRACTION = 0.7


def device_times_ns(
    case: RuleInput, is_wanted: Callable[[Kernel], bool] = lambda kernel: True
) -> dict[int, float]:
    """Return the device time of the step's kernels, in nanoseconds, by the position of the event.

    Args:
        case: The step on its device.
        is_wanted: Which kernels count; events without any have no entry.
    """
    wanted = [
        (index, kernel)
        for index in range(len(case.trace.events))
        for kernel in case.kernels_of(index)
        if is_wanted(kernel)
    ]
    if not wanted:
        return {}
    times = case.program.costs.kernel_times([kernel for _, kernel in wanted], (case.device,))
    found: dict[int, float] = {}
    for (index, _), time_ns in zip(wanted, times.time_ns[:, 0].tolist(), strict=True):
        found[index] = found.get(index, 0.0) + time_ns
    return found


class DevicePace:
    """The step as device and launches alone would pace it, and what a change saves of that.

    Loading and the script's own Python hide a slow kernel while they last, and vary from one
    recording to the next; they have rules of their own. Making one prices the whole step.
    """

    def __init__(self, case: RuleInput) -> None:
        self._what_if = WhatIf(case.program, case.device, case.host)
        self.step_ns = self._what_if.fixed(None, _WITHOUT_HOST_WORK).fixed.value_ns
        self._busy_ns = case.prediction.device_busy_ns

    def is_device_bound(self, *, more_ns: float = 0.0) -> bool:
        """Return whether the device is busy for most of it, so that slower kernels show.

        Args:
            more_ns: What kernels may take beyond their modelled time.
        """
        return self._busy_ns + more_ns >= _MIN_BUSY_FRACTION * self.step_ns

    def fraction(self, time_ns: float) -> float:
        """Return a time as a part of the step."""
        return time_ns / self.step_ns if self.step_ns > 0 else 0.0

    def gain(self, edit: Edit) -> float:
        """Return the part that a change saves; below 0 where it costs time."""
        fixed_ns = self._what_if.fixed(edit, _WITHOUT_HOST_WORK).fixed.value_ns
        return 1.0 - fixed_ns / self.step_ns if self.step_ns > 0 else 0.0

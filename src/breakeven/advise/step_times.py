"""Device times of a step's kernels, and the savings from changing them."""

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
    """Return the device time of the step's kernels, in nanoseconds, by event position.

    Args:
        case: The step on its device.
        is_wanted: Selects the kernels that count; events without any have no entry.
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
    """The step paced only by device and launches, and the savings of changes to it.

    Loading and the script's own Python hide slow kernels and vary between recordings; they have
    separate rules. The constructor simulates the whole step.
    """

    def __init__(self, case: RuleInput) -> None:
        self._what_if = WhatIf(case.program, case.device, case.host)
        self.step_ns = self._what_if.fixed(None, _WITHOUT_HOST_WORK).fixed.value_ns
        self._busy_ns = case.prediction.device_busy_ns

    def is_device_bound(self, *, more_ns: float = 0.0) -> bool:
        """Return whether the device is busy for most of the step, so that kernel times matter.

        Args:
            more_ns: Possible kernel time beyond the modelled time.
        """
        return self._busy_ns + more_ns >= _MIN_BUSY_FRACTION * self.step_ns

    def fraction(self, time_ns: float) -> float:
        """Return a time as a fraction of the step."""
        return time_ns / self.step_ns if self.step_ns > 0 else 0.0

    def gain(self, edit: Edit) -> float:
        """Return the fraction that a change saves; negative if it costs time."""
        fixed_ns = self._what_if.fixed(edit, _WITHOUT_HOST_WORK).fixed.value_ns
        return 1.0 - fixed_ns / self.step_ns if self.step_ns > 0 else 0.0

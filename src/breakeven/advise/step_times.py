"""What a step takes: its kernels on the device, all of it on this CPU, and what changes save."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from breakeven.advise.rule import KnownGain, RuleInput
from breakeven.advise.source_lines import called_at
from breakeven.cost import Kernel
from breakeven.device import DeviceSpec, Precision
from breakeven.simulate import Bound, Edit, Scenario, WhatIf
from breakeven.source import dotted_name
from breakeven.timing import CpuFacts, CpuTrial
from breakeven.trace import Location, RunFacts
from breakeven.units import format_duration

_WITHOUT_HOST_WORK = Scenario(without=frozenset({Bound.HOST_DATA}))
_MIN_BUSY_FRACTION = 0.7
# Two measurements that are closer than this are the same on a machine that others use too.
_MIN_GAIN = 0.05
_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


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


def has_tensor_cores(device: DeviceSpec) -> bool:
    """Return whether products in half precision run on units of their own.

    Those of Volta and Turing show in a float16 rate of several times the float32 rate, later
    ones by bfloat16; twice the rate alone is packed arithmetic, which products do not use.
    """
    peak = device.peak_flop_per_s
    has_fast_fp16 = peak.get(Precision.FP16, 0.0) >= 3 * peak[Precision.FP32]
    return has_fast_fp16 or Precision.BF16 in peak or Precision.TF32 in peak


@dataclass(frozen=True, slots=True)
class FasterTrial:
    """The step under a setting with which it is faster beyond doubt: the intervals lie apart."""

    cpu: CpuFacts
    trial: CpuTrial

    @property
    def gain(self) -> KnownGain:
        """Return what it saves; its interval takes both measurements at their ends."""
        before, after = self.cpu.estimate, self.trial.estimate
        return KnownGain(
            fraction=1.0 - after.value_ns / before.value_ns,
            low_fraction=1.0 - after.high_ns / before.low_ns,
            high_fraction=1.0 - after.low_ns / before.high_ns,
        )

    @property
    def evidence(self) -> str:
        """Return both measurements as text."""
        return (
            f"measured on this CPU: {format_duration(self.cpu.estimate.value_ns)} as it is, "
            f"{format_duration(self.trial.estimate.value_ns)} with {self.trial.setting}"
        )


def faster_trial(cpu: CpuFacts | None, is_meant: Callable[[CpuTrial], bool]) -> FasterTrial | None:
    """Return the fastest of some trials, where it is faster than the step as it is."""
    meant = filter(is_meant, cpu.trials if cpu else ())
    best = min(meant, key=lambda trial: trial.estimate.value_ns, default=None)
    if cpu is None or best is None or best.estimate.high_ns >= cpu.estimate.low_ns:
        return None
    found = FasterTrial(cpu, best)
    return found if found.gain.fraction > _MIN_GAIN else None


def threads_and_cores(case: RuleInput) -> tuple[int, int]:
    """Return the threads that torch computes with, and the processors that it may use."""
    known: CpuFacts | RunFacts = case.cpu or case.facts
    return known.num_threads, known.num_cores


def line_of_threads(case: RuleInput) -> Location | None:
    """Return the line that sets the number of threads; None where torch's default rules."""
    assigned = (
        source.location(node)
        for source, node in case.sources.nodes(ast.Assign)
        if any(map(_is_thread_variable, node.targets))
    )
    return called_at(case, "set_num_threads") or next(assigned, None)


def _is_thread_variable(target: ast.expr) -> bool:
    """Return whether ``target`` is ``os.environ["OMP_NUM_THREADS"]``."""
    return (
        isinstance(target, ast.Subscript)
        and dotted_name(target).endswith("environ")
        and isinstance(target.slice, ast.Constant)
        and target.slice.value in _THREAD_VARIABLES
    )

"""What it takes to reach a GPU: launches, waits, and copies of host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from breakeven.calibrate.gpu.machine import STAND_IN
from breakeven.cost import MeasuredCopy, MeasuredLaunch, MeasuredSample
from breakeven.device import Precision
from breakeven.measure import DeviceTimer

# How names of measured copies begin.
COPY = "copy "
_BUDGET_S = 0.3
_COPY_BYTES = (4_096, 65_536, 1 << 20, 1 << 23, 1 << 26)
_TINY_COPY_BYTES = (4_096, 65_536, 1 << 20)


def measure_launch(timer: DeviceTimer) -> MeasuredLaunch:
    """Return what launches and waits cost."""
    one, other = (torch.ones(1, device=timer.device) for _ in range(2))

    def issue() -> object:
        return torch.mul(one, other)

    def issue_and_wait() -> None:
        issue()
        timer.synchronize()

    queued = timer.time_call(issue, budget_s=_BUDGET_S, fills_queue=False)
    return MeasuredLaunch(
        queued_ns=queued.issue_ns,
        waited_ns=timer.time_call(issue_and_wait, budget_s=_BUDGET_S, fills_queue=False).time_ns,
        sync_ns=timer.time_call(timer.synchronize, budget_s=_BUDGET_S, fills_queue=False).time_ns,
        period_ns=timer.time_call(issue, budget_s=_BUDGET_S).time_ns,
    )


def measure_copies(timer: DeviceTimer, *, is_tiny: bool) -> Iterator[MeasuredSample]:
    """Yield the times of copies to the device that are waited for, those of any memory first."""
    sizes = _TINY_COPY_BYTES if is_tiny else _COPY_BYTES
    kinds = ("pageable",) if timer.device.type in ("mps", STAND_IN) else ("pageable", "pinned")
    for kind in kinds:
        for num_bytes in sizes:
            source = torch.ones(num_bytes, dtype=torch.uint8)
            if kind == "pinned":
                source = source.pin_memory()
            target = torch.empty_like(source, device=timer.device)

            def copy(source: torch.Tensor = source, target: torch.Tensor = target) -> None:
                target.copy_(source)
                timer.synchronize()

            found = timer.time_call(copy, budget_s=_BUDGET_S, fills_queue=False)
            yield MeasuredSample(
                name=f"{COPY}{kind} {num_bytes}",
                precision=Precision.FP32,
                time_ns=found.time_ns,
                spread=round(found.spread, 3),
                num_calls=found.num_calls,
            )


def fit_copies(samples: Sequence[MeasuredSample]) -> tuple[MeasuredCopy, ...]:
    """Return the line through the larger copies of each kind, and the shortest copy."""
    fitted: list[MeasuredCopy] = []
    for kind in ("pageable", "pinned"):
        known = [
            (float(sample.name.rpartition(" ")[2]), sample.time_ns)
            for sample in samples
            if sample.name.startswith(f"{COPY}{kind} ")
        ]
        if len(known) < 2:
            continue
        sizes, times = np.array(sorted(known)).T
        slope = (times[-1] - times[0]) / (sizes[-1] - sizes[0])
        slope = max(slope, 1e-6)  # a petabyte per second: no copy is free
        fixed_ns = float(np.median(times - slope * sizes))
        fitted.append(
            MeasuredCopy(
                is_pinned=kind == "pinned",
                least_ns=float(times.min()),
                fixed_ns=max(fixed_ns, 0.0),
                bytes_per_s=float(1e9 / slope),
            )
        )
    return tuple(fitted)

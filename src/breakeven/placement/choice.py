"""What was chosen, and on what grounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from breakeven.placement.racing import LeftOut, PlaceTime
from breakeven.units import format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The fastest place for a model's training step.

    Args:
        device: Where to train.
        num_threads: Threads of torch on the CPU that were fastest; 0 where that was not asked.
        times: What was measured; empty where there was nothing to choose between.
        left_out: Places that took no part, and why.
        duration_ns: How long choosing took.
    """

    device: torch.device
    num_threads: int = 0
    times: tuple[PlaceTime, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    duration_ns: int = 0

    @property
    def reason(self) -> str:
        """Return in one line what was measured where."""
        parts = [
            f"{time.name}: {format_duration(time.step_ns.median_ns, 2)}" for time in self.times
        ]
        parts += [f"{left.name} left out: {left.reason}" for left in self.left_out]
        if not parts:
            return "it is the only device here"
        return "; ".join(parts)

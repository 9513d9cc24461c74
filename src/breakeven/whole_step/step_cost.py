"""What a compiled step costs once, and what it saves each time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Measured times of one compiled step and of the stock step that it replaces.

    Args:
        compile_ns: Tracing and compiling.
        stock_step_ns: One step as the loop did it before.
        fast_step_ns: One step of a compiled call.
        steps_per_call: Steps that one compiled call does.
    """

    compile_ns: int
    stock_step_ns: float
    fast_step_ns: float
    steps_per_call: int

    @property
    def speedup(self) -> float:
        """Return how many times faster the compiled step is."""
        return self.stock_step_ns / self.fast_step_ns

    @property
    def pays_off_after_steps(self) -> int | None:
        """Return the steps after which compiling is earned back; None where it never is."""
        saved_ns = self.stock_step_ns - self.fast_step_ns
        return math.ceil(self.compile_ns / saved_ns) if saved_ns > 0 else None

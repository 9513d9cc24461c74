"""The parts of a measured step."""

from __future__ import annotations

import msgspec


class StepPhases(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a step, each the median of all steps, in nanoseconds.

    Args:
        backward_ns: Backward passes.
        optimizer_ns: From the end of each last backward pass to the end of the update; 0 where the
            script updates its weights itself.
    """

    backward_ns: float
    optimizer_ns: float

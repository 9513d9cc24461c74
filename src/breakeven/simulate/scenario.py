"""Circumstances under which the same step is simulated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

# Two-sided 90 % of a normal distribution.
Z_90 = 1.6449


class Bound(StrEnum):
    """What a step's time goes down with: the resource whose removal shortens it the most.

    ``launch`` is the host's issuing of device operators, ``compute`` and ``memory`` are kernels by
    what limits them, ``transfer`` the copies between host and device, ``sync`` the host's waiting
    for values and explicit syncs. ``host-optimizer`` is what the CPU computes in the optimizer
    phase, ``host-data`` all else that the CPU does for the step: loading, the script's own Python
    and operators that stay on the host.
    """

    LAUNCH = "launch"
    COMPUTE = "compute"
    MEMORY = "memory"
    TRANSFER = "transfer"
    SYNC = "sync"
    HOST_DATA = "host-data"
    HOST_OPTIMIZER = "host-optimizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One set of circumstances; the steps of a simulation are run under several at once.

    Args:
        deviation: Standard deviations by which the logarithm of every modelled time is off, all
            in the same direction. The part of the kernels' errors that averages out over a step
            is taken off before (`spread_in_step`); host, copies and launches have no such part.
            Durations that were recorded deviate like the host's.
        kernel_deviation: That of the kernels, where they need not agree with all else; None where
            they do.
        without: Resources that are free of charge, to find out what limits the step.
        is_captured: All launches are replayed from one CUDA graph instead of issued one by one.
    """

    deviation: float = 0.0
    kernel_deviation: float | None = None
    without: frozenset[Bound] = frozenset()
    is_captured: bool = False

    def scale(self, resource: Bound) -> float:
        """Return 0 for a resource that is free of charge, 1 otherwise."""
        return 0.0 if resource in self.without else 1.0

    @property
    def kernels_deviate_by(self) -> float:
        """Return the standard deviations of the kernels."""
        return self.deviation if self.kernel_deviation is None else self.kernel_deviation


TYPICAL = Scenario()
FAST = Scenario(deviation=-Z_90)
SLOW = Scenario(deviation=Z_90)
CAPTURED = Scenario(is_captured=True)
WITHOUT_EACH = tuple(Scenario(without=frozenset({bound})) for bound in Bound)

# Two independent errors are as likely this far off together as one alone is by `Z_90`.
_BOTH = Z_90 / math.sqrt(2.0)
MIXED = (
    Scenario(deviation=_BOTH, kernel_deviation=-_BOTH),
    Scenario(deviation=-_BOTH, kernel_deviation=_BOTH),
)
"""A slow host with a fast device, and a fast host with a slow one."""

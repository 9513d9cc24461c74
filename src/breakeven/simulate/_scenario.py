"""Circumstances under which the same step is simulated."""

from __future__ import annotations

from dataclasses import dataclass

from breakeven.simulate._bound import Bound

# Two-sided 90 % of a normal distribution.
Z_90 = 1.6449


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One set of circumstances; the steps of a simulation are run under several at once.

    Args:
        deviation: Standard deviations by which the logarithm of every modelled time is off, all
            in the same direction. The part of the kernels' errors that averages out over a step
            is taken off before (`spread_in_step`); host, copies and launches have no such part.
            Durations that were recorded deviate like the host's.
        without: Resources that are free of charge, to find out what limits the step.
        is_captured: All launches are replayed from one CUDA graph instead of issued one by one.
    """

    deviation: float = 0.0
    without: frozenset[Bound] = frozenset()
    is_captured: bool = False

    def scale(self, resource: Bound) -> float:
        """Return 0 for a resource that is free of charge, 1 otherwise."""
        return 0.0 if resource in self.without else 1.0


TYPICAL = Scenario()
FAST = Scenario(deviation=-Z_90)
SLOW = Scenario(deviation=Z_90)
CAPTURED = Scenario(is_captured=True)
WITHOUT_EACH = tuple(Scenario(without=frozenset({bound})) for bound in Bound)

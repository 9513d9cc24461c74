"""Tolerances of comparisons between numbers that should agree up to rounding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Only one pair of runs measures the difference between runs that should agree: leave room.
SPREAD_FACTOR = 3.0
# Limit of the factor on the tolerance: a larger run-to-run difference would hide mistakes.
MOST_OWN_FACTOR = 10.0
# A training amplifies rounding differently in each run, and much more if one product changes its
# sign. Move the weights at most this many times to measure that.
MOST_PERTURBED = 3
# Error of a layer's sums of some thousand products, in unit roundoffs of the weights' format.
LAYER_ROUNDOFFS = 16.0

# Unit roundoff: half the distance from 1 to the next number of the format.
UNIT_ROUNDOFFS = {
    "float64": 2.0**-53, "complex128": 2.0**-53, "float32": 2.0**-24, "complex64": 2.0**-24,
    "float16": 2.0**-11, "bfloat16": 2.0**-8,
}  # fmt: skip

# Least scale of a comparison, as a fraction of the norm of all tensors of the kind. It excuses
# values that are only rounding, such as the gradient of a bias before a batch normalization.
_SMALL_FRACTION = 1e-3


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Allowed differences, as fractions of the size of the compared values.

    Args:
        loss: For a loss.
        tensor: For a gradient; in a step, for a parameter's effect on the loss, or a state.
    """

    loss: float
    tensor: float

    def widened(self, factor: float) -> Tolerance:
        """Return the tolerance multiplied by a factor."""
        return Tolerance(loss=factor * self.loss, tensor=factor * self.tensor)


# Tolerance of one comparison in the middle of a training, without knowledge of how much this model
# amplifies rounding. float32 rounds by 6e-8; sums of some thousand terms, a few consecutive layers
# and a few steps raise that to 1e-4 at worst. Half formats round by 4e-3 (bfloat16) in each of
# several layers, and a compiled step rounds in fewer places than the stock step.
_LOSS_FRACTIONS = {"float64": 1e-9, "float32": 1e-4, "float16": 3e-2, "bfloat16": 3e-2}


def step_tolerance(dtypes: Iterable[str]) -> Tolerance:
    """Return the tolerance for two steps from the same weights.

    Args:
        dtypes: Torch's names of the formats in the step; the coarsest sets the tolerance.
    """
    loss = _LOSS_FRACTIONS[coarsest_format(dtypes)]
    # Gradients are differences of larger numbers, and some updates divide by their size: the move
    # of a parameter is less exact than the loss.
    return Tolerance(loss=loss, tensor=10 * loss)


def coarsest_format(dtypes: Iterable[str]) -> str:
    """Return the coarsest of some formats; an unknown one counts as float32."""
    known = (dtype if dtype in UNIT_ROUNDOFFS else "float32" for dtype in dtypes)
    return max(known, key=UNIT_ROUNDOFFS.__getitem__, default="float32")


def scale_of(norm: float, whole: float) -> float:
    """Return the scale of a difference.

    Args:
        norm: Norm of the compared values.
        whole: Norm of all tensors of their kind, or of the largest.
    """
    return max(norm, _SMALL_FRACTION * whole)

"""By how much numbers may differ that ought to be the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# What two runs that ought to agree differ by is known from one pair of them: leave room.
SPREAD_FACTOR = 3.0
# A script that differs so many times more than is allowed from one run to the next hides mistakes.
MOST_OWN_FACTOR = 10.0
# What a training makes of rounding differs from run to run: where a single product changes its
# sign, many times as much. So many times weights are moved to see it.
MOST_PERTURBED = 3
# Sums of some thousand products, as a layer computes them, are off by so many unit roundoffs of
# the weights' format.
LAYER_ROUNDOFFS = 16.0

# Unit roundoff: half the distance from 1 to the next number of the format.
UNIT_ROUNDOFFS = {
    "float64": 2.0**-53, "complex128": 2.0**-53, "float32": 2.0**-24, "complex64": 2.0**-24,
    "float16": 2.0**-11, "bfloat16": 2.0**-8,
}  # fmt: skip

# A number this small beside all of its kind is compared as if it were larger: what is zero but for
# rounding, such as the gradient of a bias before a batch normalization, says nothing.
_SMALL_FRACTION = 1e-3


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What may differ, as a fraction of the size of what is compared.

    Args:
        loss: Of a loss.
        tensor: Of a gradient; of a step, of what a parameter moves the loss by, or a state.
    """

    loss: float
    tensor: float

    def widened(self, factor: float) -> Tolerance:
        """Return one that lets so many times more differ."""
        return Tolerance(loss=factor * self.loss, tensor=factor * self.tensor)


# A step is compared in the middle of a training, once, where nothing tells how much of a difference
# is this model's nature. float32 rounds by 6e-8; sums of some thousand terms, a few layers one
# after the other, and a few steps make it 1e-4 at worst. Half formats round by 4e-3 (bfloat16) in
# each of several layers, and a compiled step rounds in fewer places than the stock one.
_LOSS_FRACTIONS = {"float64": 1e-9, "float32": 1e-4, "float16": 3e-2, "bfloat16": 3e-2}


def step_tolerance(dtypes: Iterable[str]) -> Tolerance:
    """Return what two steps from the same weights may differ by.

    Args:
        dtypes: Formats that take part, as torch names them: the coarsest counts.
    """
    loss = _LOSS_FRACTIONS[coarsest_format(dtypes)]
    # Gradients are differences of larger numbers, and some updates divide by their size: what a
    # parameter moves by is less sure than the loss.
    return Tolerance(loss=loss, tensor=10 * loss)


def coarsest_format(dtypes: Iterable[str]) -> str:
    """Return the coarsest of some formats; one that is not known is computed in float32."""
    known = (dtype if dtype in UNIT_ROUNDOFFS else "float32" for dtype in dtypes)
    return max(known, key=UNIT_ROUNDOFFS.__getitem__, default="float32")


def scale_of(norm: float, whole: float) -> float:
    """Return the size that a difference is divided by.

    Args:
        norm: Of what is compared.
        whole: Of all of its kind.
    """
    return max(norm, _SMALL_FRACTION * whole)

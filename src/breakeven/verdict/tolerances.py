"""How far numbers may be apart before a change counts as wrong: one table for all that asks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from breakeven.verdict.tune_report import Numerics

# Unit roundoff: half the distance from 1 to the next number of the format.
UNIT_ROUNDOFFS = {
    "float64": 2.0**-53, "complex128": 2.0**-53, "float32": 2.0**-24, "complex64": 2.0**-24,
    "float16": 2.0**-11, "bfloat16": 2.0**-8,
}  # fmt: skip

# A number this small beside all of its kind is compared as if it were larger: what is zero but for
# rounding, such as the gradient of a bias before a batch normalization, says nothing.
_SMALL_FRACTION = 1e-3


class Compared(Enum):
    """What is held against each other."""

    RUNS = auto()  # of a script, in their own processes: losses and gradients of the first steps
    STEP = auto()  # by other code, from the same weights: its loss, what it moves, buffers, state


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What may differ, beside the size of what is compared.

    Args:
        loss: Of a loss.
        tensor: Of a gradient; of a step, of what a parameter moves the loss by, or a state.
    """

    loss: float
    tensor: float


def _of_runs(tensor: float) -> Tolerance:
    # A loss is an average of few operators' results: it has not the cancellation of gradients.
    return Tolerance(loss=tensor / 8, tensor=tensor)


def _of_step(loss: float) -> Tolerance:
    # Gradients are differences of larger numbers, and some updates divide by their size: what a
    # parameter moves by is less sure than the loss.
    return Tolerance(loss=loss, tensor=10 * loss)


_Row = tuple[Compared, Numerics, str]
_TOLERANCES: Mapping[_Row, Tolerance] = {
    # The same n terms added up in another order differ by up to some sqrt(n) unit roundoffs of the
    # sum of their magnitudes. Gradients sum over batch and positions, up to 10^6 terms: 10^3 of
    # them, and terms cancel, which takes another factor: 2^12, 0.02 % in float32. Tried with one
    # thread for two and channels last for first, on two linear networks, a convolutional one, a
    # transformer and an LSTM: at most 0.01 % in the first step. A ResNet-18 had 0.6 %, where an
    # activation came out on the other side of zero: runs with moved weights widen it for such.
    **{
        (Compared.RUNS, Numerics.REORDERED, dtype): _of_runs(2.0**12 * UNIT_ROUNDOFFS[dtype])
        for dtype in ("float64", "complex128", "float32", "complex64")
    },
    # Formats of 16 bits add up in float32: what differs is the last rounding, a few times in a row.
    **{
        (Compared.RUNS, Numerics.REORDERED, dtype): _of_runs(4.0 * UNIT_ROUNDOFFS[dtype])
        for dtype in ("float16", "bfloat16")
    },
    # A bfloat16 operand is off by 2^-8 at most. Gradients of a batch cancel, which leaves an error
    # of some 1 to 20 % by layer (tried on the same networks): 2^6 roundoffs. A ResNet-18 had 40 %:
    # it takes the comparison with moved weights to tell that this is its nature.
    **{
        (Compared.RUNS, Numerics.LOWER_PRECISION, dtype): _of_runs(
            2.0**6 * UNIT_ROUNDOFFS["bfloat16"]
        )
        for dtype in UNIT_ROUNDOFFS
    },
    # A step is compared in the middle of a training, once, where nothing tells how much of a
    # difference is this model's nature. So its losses have more room than those of runs, which
    # moved weights can widen: float32 rounds by 6e-8; sums of some thousand terms, a few layers one
    # after the other, and a few steps make it 1e-4 at worst.
    (Compared.STEP, Numerics.REORDERED, "float64"): _of_step(1e-9),
    (Compared.STEP, Numerics.REORDERED, "float32"): _of_step(1e-4),
    # Half formats round by 4e-3 (bfloat16) in each of several layers, and a compiled step rounds in
    # fewer places than the stock one.
    (Compared.STEP, Numerics.REORDERED, "float16"): _of_step(3e-2),
    (Compared.STEP, Numerics.REORDERED, "bfloat16"): _of_step(3e-2),
}


def tolerance_of(compared: Compared, numerics: Numerics, *dtypes: str) -> Tolerance:
    """Return what may differ.

    Args:
        compared: What is held against each other.
        numerics: What the change may do.
        dtypes: Formats that take part, as torch names them: the coarsest counts. A number that is
            in none of those known is taken to be computed in float32.
    """
    coarsest = max((_known(dtype) for dtype in dtypes), key=UNIT_ROUNDOFFS.__getitem__)
    return _TOLERANCES[compared, numerics, coarsest]


def _known(dtype: str) -> str:
    return dtype if dtype in UNIT_ROUNDOFFS else "float32"


def scale_of(norm: float, whole: float) -> float:
    """Return beside what a difference is judged.

    Args:
        norm: Of what is compared.
        whole: Of all of its kind.
    """
    return max(norm, _SMALL_FRACTION * whole)


def weight_noise_roundoffs(numerics: Numerics) -> float:
    """Return by how many unit roundoffs weights are moved to see what becomes of a class's errors.

    Sums of some thousand products, as a layer computes them, are off by some 16 roundoffs of the
    weights' format; a weight that is rounded from float32 to bfloat16, by 2^16 of them.
    """
    return 2.0**16 if numerics is Numerics.LOWER_PRECISION else 16.0

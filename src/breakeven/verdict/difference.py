"""The numbers of a training's first steps, and the first difference beyond the tolerance."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from breakeven.units import format_percent

# Smaller shares are shown as a power of ten: 0.00001 % is hard to read.
_SMALLEST_PERCENT = 1e-6


class DifferenceKind(StrEnum):
    """What differs."""

    LOSS = "loss"
    GRADIENT = "gradient"
    RANDOM_NUMBERS = "random_numbers"
    MISSING = "missing"
    NOT_FINITE = "not_finite"
    NUM_STEPS = "num_steps"
    UNDECIDED = "undecided"
    NOTHING = "nothing"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference between two runs that exceeds the tolerance.

    Args:
        kind: Kind of the difference.
        step: Number of the step, counted from 1; for random numbers, the number of steps before.
        tensor: Kind and name of the tensor: ``the gradient of layers.0.weight``.
        baseline: Norm, loss value or count in the unchanged script.
        candidate: The same quantity in the changed script.
        difference_fraction: Size of the difference, relative to the baseline.
        allowed_fraction: The tolerance; 0 if not one bit may differ.
        is_own: Whether two runs of the unchanged script differ this much, so no check is possible.
    """

    kind: DifferenceKind
    step: int
    tensor: str = ""
    baseline: float = 0.0
    candidate: float = 0.0
    difference_fraction: float = 0.0
    allowed_fraction: float = 0.0
    is_own: bool = False

    @property
    def sentence(self) -> str:
        """Return the difference as a sentence for a person."""
        if self.is_own:
            return f"cannot be checked: two runs of the script as it is differ ({self._what})"
        return self._what

    def as_own(self) -> Difference:
        """Return the same difference, marked as one between two runs of the same script."""
        return msgspec.structs.replace(self, is_own=True)

    @property
    def _what(self) -> str:
        match self.kind:
            case DifferenceKind.LOSS | DifferenceKind.GRADIENT:
                return f"at step {self.step} {self.tensor} differs by {self._how_much}"
            case DifferenceKind.RANDOM_NUMBERS:
                return f"after {_steps(self.step)} other random numbers have been drawn"
            case DifferenceKind.MISSING:
                which = "is missing" if self.baseline else "is there, which it was not before"
                return f"at step {self.step} {self.tensor} {which}"
            case DifferenceKind.NOT_FINITE:
                return (
                    f"at step {self.step} {self.tensor} is not finite in {self.candidate:.0f} "
                    f"places, instead of {self.baseline:.0f}"
                )
            case DifferenceKind.NUM_STEPS:
                return (
                    f"the run ends after {_steps(int(self.candidate))}, "
                    f"instead of {self.baseline:.0f}"
                )
            case DifferenceKind.UNDECIDED:
                return (
                    "cannot be checked: changes of the weights as small as rounding change the "
                    f"gradients of step {self.step} by {_share(self.difference_fraction)}"
                )
            case DifferenceKind.NOTHING:
                return "cannot be checked: the script computes no loss or gradient in its steps"

    @property
    def _how_much(self) -> str:
        if not self.allowed_fraction:
            return f"{_share(self.difference_fraction)} (allowed: not one bit)"
        return f"{_share(self.difference_fraction)} (allowed: {_share(self.allowed_fraction)})"


def _share(fraction: float) -> str:
    if fraction == float("inf"):
        return "more than all of it"
    return format_percent(fraction) if fraction >= _SMALLEST_PERCENT else f"{fraction:.0e}"


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


LOSS_KEY = "loss"


class TensorNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """A loss or a gradient: all of it as a digest, some of it as numbers.

    Args:
        key: Key that matches it with the same tensor of another run: ``loss1``,
            ``optimizer0.group0.3``.
        name: Name for a person: ``layers.0.weight``.
        dtype: As torch names it: ``float32``.
        shape: Its shape.
        digest: SHA-256 of its bytes in element order, independent of memory layout.
        norm: Root of the sum of the squares of its finite elements.
        num_not_finite: Elements that are NaN or infinite.
        elements: A sample of evenly spaced elements, as bytes of native float64.
    """

    key: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: bytes
    norm: float
    num_not_finite: int
    elements: bytes

    @property
    def is_loss(self) -> bool:
        """Return whether it is a loss, not a gradient."""
        return self.key.startswith(LOSS_KEY)

    @property
    def values(self) -> memoryview[float]:
        """Return the kept elements."""
        return memoryview(self.elements).cast("d")

    @property
    def num_elements(self) -> int:
        """Return the number of elements of the whole tensor."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class StepNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """One update of the weights.

    Args:
        losses: Losses on which the script called ``backward`` since the previous update.
        gradients: Gradients just before the update, of the parameters that have one.
    """

    losses: tuple[TensorNumbers, ...]
    gradients: tuple[TensorNumbers, ...]


class RecordedNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The first steps of a run.

    Args:
        steps: Their numbers, in order.
        rng_digest: SHA-256 of the states of the random number generators after them.
        arithmetic: The 16-bit format of the script's own autocast; empty if there is no autocast.
    """

    steps: tuple[StepNumbers, ...]
    rng_digest: bytes
    arithmetic: str = ""

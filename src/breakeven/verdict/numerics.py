"""The numbers of a training's first steps, and the first difference beyond the tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from breakeven.units import format_percent
from breakeven.verdict.tune_report import Numerics
from faststep.tolerance import (
    LAYER_ROUNDOFFS,
    MOST_OWN_FACTOR,
    SPREAD_FACTOR,
    UNIT_ROUNDOFFS,
    Tolerance,
    coarsest_format,
    scale_of,
)

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


# From this difference on, a wrong sign (2.0), another tensor (1.4) or a missing one (1.0) looks
# like grown rounding errors.
_MOST_GROWTH = {Numerics.REORDERED: 0.5, Numerics.LOWER_PRECISION: 0.9}


def compare_numbers(
    baseline: RecordedNumbers,
    candidate: RecordedNumbers,
    *,
    numerics: Numerics,
    repeat: RecordedNumbers | None = None,
    perturbed: Sequence[RecordedNumbers] = (),
) -> Difference | None:
    """Return the first difference beyond what ``numerics`` allows; None if there is none.

    Args:
        baseline: The unchanged script.
        candidate: The script with the change.
        numerics: The allowed effect of the change.
        repeat: A second run of the unchanged script. If it differs from the first, single bits
            cannot be compared, and tolerances widen to three times that difference. If that is ten
            times the tolerance or more, the script's own difference is returned.
        perturbed: Runs of the unchanged script whose initial weights are moved by the rounding
            error of the class. Tolerances widen to three times the largest resulting difference:
            training can multiply rounding a thousandfold in a single step.
    """
    if numerics is Numerics.TRAINING:
        return _first_not_finite(baseline, candidate)
    if not any(_tensors(step) for step in baseline.steps):
        return Difference(kind=DifferenceKind.NOTHING, step=1)
    own = None if repeat is None else _first_unequal(baseline, repeat)
    if numerics is Numerics.EXACT:
        return own.as_own() if own else _first_unequal(baseline, candidate)
    if own is not None and numerics is Numerics.REORDERED and repeat is not None:
        drawn = _other_random_numbers(baseline, repeat)
        if drawn is not None:
            return drawn.as_own()
    for number in range(1, 1 + min(len(baseline.steps), len(candidate.steps))):
        found = _difference_in_step(number, baseline, candidate, numerics, repeat, perturbed)
        if found is not None:
            return found
    if found := _other_num_steps(baseline, candidate):
        return found
    # A random decision that depends on a computed number may turn out differently.
    is_lower = numerics is Numerics.LOWER_PRECISION
    return None if is_lower else _other_random_numbers(baseline, candidate)


def _difference_in_step(
    number: int,
    baseline: RecordedNumbers,
    candidate: RecordedNumbers,
    numerics: Numerics,
    repeat: RecordedNumbers | None,
    perturbed: Sequence[RecordedNumbers],
) -> Difference | None:
    """Return the first difference beyond the tolerance in one step."""
    step = baseline.steps[number - 1]
    repeats = _by_key(repeat, number)
    moved = [_by_key(run, number) for run in perturbed]
    norm = math.hypot(*(gradient.norm for gradient in step.gradients))
    # If a loss cancels to zero, as in a policy's first update, its error is rounding of its terms.
    # The terms are as large as the loss becomes later.
    loss_scale = max((loss.norm for each in baseline.steps for loss in each.losses), default=0.0)
    undecided: list[float] = []
    num_decided = 0
    for own, other, is_loss in _pairs(step, candidate.steps[number - 1]):
        if own is None or other is None:
            return _missing(number, own, other)
        if own.num_not_finite or other.num_not_finite:
            if own.num_not_finite != other.num_not_finite:
                return _not_finite(number, own, other)
            continue
        if own.shape != other.shape:
            return _missing(number, own, None)
        scale = loss_scale if is_loss else scale_of(own.norm, norm)
        # Outside autocast, numbers are computed in their own format.
        dtypes = (own.dtype, baseline.arithmetic or own.dtype)
        allowed = runs_tolerance(numerics, *dtypes)
        tolerance = allowed.loss if is_loss else allowed.tensor
        again = repeats.get(own.key)
        spread = SPREAD_FACTOR * _relative(own, again, scale)
        if again is not None and spread >= MOST_OWN_FACTOR * tolerance:
            return _differing(number, own, again, spread / SPREAD_FACTOR, tolerance).as_own()
        grown = (_relative(own, run.get(own.key), scale) for run in moved)
        growth = SPREAD_FACTOR * max(grown, default=0.0)
        most = max(tolerance, spread, growth)
        if most >= _MOST_GROWTH[numerics]:
            undecided.append(growth / SPREAD_FACTOR)
            continue
        num_decided += 1
        difference = _relative(own, other, scale)
        if difference > most:
            return _differing(number, own, other, difference, most)
    if number == 1 and undecided and not num_decided:
        return Difference(kind=DifferenceKind.UNDECIDED, step=1, difference_fraction=max(undecided))
    return None


def _first_unequal(baseline: RecordedNumbers, other: RecordedNumbers) -> Difference | None:
    """Return the first difference in a single bit."""
    for number, (own, others) in enumerate(zip(baseline.steps, other.steps, strict=False), 1):
        for one, another, _ in _pairs(own, others):
            if one is None or another is None or one.shape != another.shape:
                return _missing(number, one, None if one else another)
            if one.digest != another.digest or one.dtype != another.dtype:
                if one.num_not_finite != another.num_not_finite:
                    return _not_finite(number, one, another)
                return _differing(number, one, another, _relative(one, another, one.norm), 0.0)
    return _other_num_steps(baseline, other) or _other_random_numbers(baseline, other)


def _first_not_finite(baseline: RecordedNumbers, candidate: RecordedNumbers) -> Difference | None:
    """Return the first non-finite number of a run, if the baseline has none."""
    if any(tensor.num_not_finite for step in baseline.steps for tensor in _tensors(step)):
        return None
    for number, step in enumerate(candidate.steps, 1):
        for tensor in _tensors(step):
            if tensor.num_not_finite:
                return _not_finite(number, None, tensor)
    return None


def _differing(
    step: int, own: TensorNumbers, other: TensorNumbers, fraction: float, allowed: float
) -> Difference:
    """Return the difference of two tensors by ``fraction``, beyond ``allowed``."""
    return Difference(
        kind=DifferenceKind.LOSS if own.is_loss else DifferenceKind.GRADIENT,
        step=step,
        tensor=_called(own),
        baseline=_shown_value(own),
        candidate=_shown_value(other),
        difference_fraction=fraction,
        allowed_fraction=allowed,
    )


def _missing(step: int, own: TensorNumbers | None, other: TensorNumbers | None) -> Difference:
    """Return the difference of a tensor that only one run has."""
    tensor = own or other
    assert tensor is not None
    return Difference(
        kind=DifferenceKind.MISSING,
        step=step,
        tensor=_called(tensor),
        baseline=float(own is not None),
        candidate=float(other is not None),
    )


def _not_finite(step: int, own: TensorNumbers | None, other: TensorNumbers) -> Difference:
    """Return the difference in non-finite values; ``own`` is None if the baseline has none."""
    return Difference(
        kind=DifferenceKind.NOT_FINITE,
        step=step,
        tensor=_called(other),
        baseline=own.num_not_finite if own else 0,
        candidate=other.num_not_finite,
    )


def _other_num_steps(baseline: RecordedNumbers, other: RecordedNumbers) -> Difference | None:
    """Return the difference in the number of steps, if any."""
    counts = len(baseline.steps), len(other.steps)
    if counts[0] == counts[1]:
        return None
    return Difference(
        kind=DifferenceKind.NUM_STEPS,
        step=min(counts) + 1,
        baseline=counts[0],
        candidate=counts[1],
    )


def _other_random_numbers(baseline: RecordedNumbers, other: RecordedNumbers) -> Difference | None:
    """Return the difference in the drawn random numbers, if any."""
    if baseline.rng_digest == other.rng_digest:
        return None
    return Difference(kind=DifferenceKind.RANDOM_NUMBERS, step=len(baseline.steps))


def _called(tensor: TensorNumbers) -> str:
    return tensor.name if tensor.is_loss else f"the gradient of {tensor.name}"


def _shown_value(tensor: TensorNumbers) -> float:
    """Return the value of a loss, and the norm of anything larger."""
    return tensor.values[0] if tensor.num_elements == 1 else tensor.norm


def _tensors(step: StepNumbers) -> Sequence[TensorNumbers]:
    return (*step.losses, *step.gradients)


def _pairs(
    baseline: StepNumbers, other: StepNumbers
) -> Iterator[tuple[TensorNumbers | None, TensorNumbers | None, bool]]:
    """Yield pairs of matching tensors, and whether they are losses; None for a missing tensor."""
    for own, others, is_loss in (
        (baseline.losses, other.losses, True),
        (baseline.gradients, other.gradients, False),
    ):
        unmatched = {tensor.key: tensor for tensor in others}
        for tensor in own:
            yield tensor, unmatched.pop(tensor.key, None), is_loss
        for tensor in unmatched.values():
            yield None, tensor, is_loss


def _by_key(numbers: RecordedNumbers | None, step: int) -> dict[str, TensorNumbers]:
    if numbers is None or len(numbers.steps) < step:
        return {}
    return {tensor.key: tensor for tensor in _tensors(numbers.steps[step - 1])}


def _relative(baseline: TensorNumbers, other: TensorNumbers | None, scale: float) -> float:
    """Return the norm of the difference relative to ``scale``; 0 without another tensor."""
    if other is None or baseline.digest == other.digest:
        return 0.0
    if baseline.shape != other.shape or other.num_not_finite:
        return math.inf
    kept = len(baseline.values)
    distance = math.dist(baseline.values, other.values) * math.sqrt(
        baseline.num_elements / max(1, kept)
    )
    # The norm covers all elements: it changes even if all sampled elements agree.
    distance = max(distance, abs(baseline.norm - other.norm))
    if not distance:
        return 0.0
    return distance / scale if scale else math.inf


def _of_runs(tensor: float) -> Tolerance:
    # A loss is an average of few operators' results, without the cancellation of gradients.
    return Tolerance(loss=tensor / 8, tensor=tensor)


_TOLERANCES: Mapping[tuple[Numerics, str], Tolerance] = {
    # The same n terms summed in another order differ by up to about sqrt(n) unit roundoffs of the
    # sum of their magnitudes. Gradients sum over batch and positions, up to 10^6 terms, so 10^3
    # roundoffs. Cancelling terms cost another factor: 2^12, 0.02 % in float32. Tried with two
    # threads instead of one and channels last instead of first, on two linear networks, a
    # convolutional one, a transformer and an LSTM: at most 0.01 % in the first step. A ResNet-18
    # had 0.6 % because an activation fell on the other side of zero: runs with moved weights widen
    # the tolerance for that.
    **{
        (Numerics.REORDERED, dtype): _of_runs(2.0**12 * UNIT_ROUNDOFFS[dtype])
        for dtype in ("float64", "complex128", "float32", "complex64")
    },
    # 16-bit formats accumulate in float32: only the last rounding differs, a few times in a row.
    **{
        (Numerics.REORDERED, dtype): _of_runs(4.0 * UNIT_ROUNDOFFS[dtype])
        for dtype in ("float16", "bfloat16")
    },
    # A bfloat16 operand has an error of at most 2^-8. Gradients of a batch cancel, which leaves an
    # error of about 1 to 20 % by layer (tried on the same networks): 2^6 roundoffs. A ResNet-18 had
    # 40 %: only the runs with moved weights show that this is normal for it.
    **{
        (Numerics.LOWER_PRECISION, dtype): _of_runs(2.0**6 * UNIT_ROUNDOFFS["bfloat16"])
        for dtype in UNIT_ROUNDOFFS
    },
}


def runs_tolerance(numerics: Numerics, *dtypes: str) -> Tolerance:
    """Return the tolerance for losses and gradients of the first steps of two runs.

    Args:
        numerics: The allowed effect of the change.
        dtypes: Formats involved, as torch names them; the coarsest decides.
    """
    return _TOLERANCES[numerics, coarsest_format(dtypes)]


def weight_noise_roundoffs(numerics: Numerics) -> float:
    """Return the unit roundoffs by which weights are moved, to see how a class's errors grow.

    Rounding a weight from float32 to bfloat16 moves it by 2^16 of them.
    """
    return 2.0**16 if numerics is Numerics.LOWER_PRECISION else LAYER_ROUNDOFFS

"""Made-up recordings of the numbers of a few steps."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Mapping, Sequence

from breakeven.verdict import LOSS_KEY, RecordedNumbers, StepNumbers, TensorNumbers


def tensor_of(values: Sequence[float], name: str, dtype: str = "float32") -> TensorNumbers:
    """Return the recorded numbers of a gradient, or of a loss if the name is "the loss"."""
    finite = [value for value in values if math.isfinite(value)]
    elements = array("d", values).tobytes()
    return TensorNumbers(
        key=f"{LOSS_KEY}1" if name == "the loss" else f"optimizer0.{name}",
        name=name,
        dtype=dtype,
        shape=(len(values),),
        digest=hashlib.sha256(elements).digest(),
        norm=math.hypot(*finite),
        num_not_finite=len(values) - len(finite),
        elements=elements,
    )


def step_of(
    loss: float, gradients: Mapping[str, Sequence[float]], dtype: str = "float32"
) -> StepNumbers:
    """Return a step with one loss."""
    return StepNumbers(
        losses=(tensor_of([loss], "the loss", dtype),),
        gradients=tuple(tensor_of(values, name, dtype) for name, values in gradients.items()),
    )


def numbers_of(*steps: StepNumbers, rng: bytes = b"", arithmetic: str = "") -> RecordedNumbers:
    """Return a recording."""
    return RecordedNumbers(steps=steps, rng_digest=rng, arithmetic=arithmetic)

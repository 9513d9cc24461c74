"""Losses and gradients of the first steps of a training, as they are kept to be compared."""

from __future__ import annotations

import msgspec

LOSS_KEY = "loss"


class TensorNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """A loss or a gradient: all of it as a digest, some of it as numbers.

    Args:
        key: What pairs it with its like in another run: ``loss1``, ``optimizer0.group0.3``.
        name: What a person calls it: ``layers.0.weight``.
        dtype: As torch names it: ``float32``.
        shape: Its shape.
        digest: SHA-256 of its bytes in the order of its elements, whatever its memory layout.
        norm: Root of the sum of the squares of its finite elements.
        num_not_finite: Elements that are NaN or infinite.
        elements: Evenly spread elements, as many as are kept, as bytes of the machine's float64.
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
        """Return how many elements the whole tensor has."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class StepNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """One update of the weights.

    Args:
        losses: On which the script called ``backward`` since the update before.
        gradients: Of the parameters that have one, just before the update.
    """

    losses: tuple[TensorNumbers, ...]
    gradients: tuple[TensorNumbers, ...]


class RecordedNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The first steps of a run.

    Args:
        steps: In their order.
        rng_digest: SHA-256 of the states of the random number generators after them.
        arithmetic: The format of 16 bits that the script's own autocast asks for; empty where
            tensors are computed in their own.
    """

    steps: tuple[StepNumbers, ...]
    rng_digest: bytes
    arithmetic: str = ""

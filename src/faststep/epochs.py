"""In which order the samples of a data set are taken, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from faststep.errors import FastStepError


def epoch_rows(
    num_samples: int,
    *,
    batch_size: int,
    epochs: int,
    every: int,
    shuffle: bool,
    drop_last: bool,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    """Return the samples of the steps to come, one row for each step, up to ``every`` at a time.

    The samples that do not fill a batch are a row of their own at the end of an epoch.

    Args:
        num_samples: Samples of the data set.
        batch_size: As for ``FastStep.train``, as all that follow.
        epochs: As there.
        every: As there.
        shuffle: As there.
        drop_last: As there.
        generator: As there.

    Raises:
        FastStepError: A number makes no sense.
    """
    for name, value in (("batch_size", batch_size), ("epochs", epochs), ("every", every)):
        if value < 1:
            raise FastStepError(f"{name} is {value}: it must be 1 or more")
    num_whole = num_samples - num_samples % batch_size
    if not num_samples or (drop_last and not num_whole):
        raise FastStepError(f"{num_samples} samples do not fill a batch of {batch_size}")

    def rows() -> Iterator[Tensor]:
        for _ in range(epochs):
            order = (
                torch.randperm(num_samples, generator=generator)
                if shuffle
                else torch.arange(num_samples)
            )
            if num_whole:
                yield from order[:num_whole].view(-1, batch_size).split(every)
            if num_whole < num_samples and not drop_last:
                yield order[num_whole:].view(1, -1)

    return rows()

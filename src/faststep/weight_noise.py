"""Weights that are moved by rounding, to see what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.parameter import is_lazy

# Of a format of 16 bits, more roundoffs than this are a change that nobody calls rounding.
_MOST = 2.0**-8


def move_weights(
    parameters: Iterable[torch.Tensor], roundoffs: float, signs: torch.Generator
) -> None:
    """Move each weight up or down by the same fraction of itself, in place.

    Args:
        parameters: The weights; those that are not floating-point numbers stay.
        roundoffs: The fraction, in roundoffs of the weight's own format.
        signs: Decides which go up; no other random numbers are drawn.
    """
    for parameter in parameters:
        if parameter.is_floating_point() and not is_lazy(parameter):
            # Half of eps, the distance from 1 to the next number.
            fraction = min(roundoffs * torch.finfo(parameter.dtype).eps / 2, _MOST)
            ups = torch.randint(0, 2, parameter.shape, generator=signs) * 2 - 1
            factors = 1 + fraction * ups.to(torch.float64)
            parameter.data.copy_(parameter.data * factors.to(parameter.device))

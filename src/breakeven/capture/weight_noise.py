"""Move weights by as much as rounding does, to see what the training makes of it."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch

from breakeven.configure import Patches, updated_by

# Of a format of 16 bits, more roundoffs than this are a change that nobody calls rounding.
_MOST = 2.0**-8


class WeightNoise(Patches):
    """Inside, weights are moved when an optimizer is given them, and whenever `move` is called.

    Each weight goes up or down by the same fraction of itself. No generator of the script is used.

    Args:
        roundoffs: The fraction, in roundoffs of the weight's own format; 0 to move none.
        seed: Of the signs, which are the same in every run with it.
    """

    def __init__(self, roundoffs: float, seed: int = 0) -> None:
        super().__init__()
        self._roundoffs = roundoffs
        self._signs = torch.Generator().manual_seed(seed)

    def __enter__(self) -> WeightNoise:
        super().__enter__()
        if self._roundoffs:
            original = torch.optim.Optimizer.__init__

            @functools.wraps(original)
            def initialize(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
                original(optimizer, *args, **kwargs)
                self.move(updated_by(optimizer))

            self.replace(torch.optim.Optimizer, "__init__", initialize)
        return self

    def move(self, parameters: Iterable[torch.Tensor]) -> None:
        """Move these weights."""
        if not self._roundoffs:
            return
        for parameter in parameters:
            if parameter.is_floating_point() and not _is_lazy(parameter):
                # Half of eps, the distance from 1 to the next number.
                fraction = min(self._roundoffs * torch.finfo(parameter.dtype).eps / 2, _MOST)
                signs = torch.randint(0, 2, parameter.shape, generator=self._signs) * 2 - 1
                factors = 1 + fraction * signs.to(torch.float64)
                moved = parameter.data * factors.to(parameter.device)
                parameter.data.copy_(moved)


def _is_lazy(parameter: torch.Tensor) -> bool:
    return isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin)  # pyright: ignore[reportAttributeAccessIssue]

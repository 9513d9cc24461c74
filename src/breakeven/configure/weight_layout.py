"""Weights of convolutions with their channels last, in a script that does not know of it."""

from __future__ import annotations

import functools
from typing import Any

import torch

from breakeven.configure.module_tree import updated_by
from breakeven.configure.patching import Patches

# Of the weights of two-dimensional convolutions: channels out, channels in, height, width.
_NUM_DIMENSIONS = 4


class channels_last_weights(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, an optimizer puts the weights that it is given into channels-last memory.

    Convolutions hand on the layout of their weights, so that batches need not be converted. Values
    and shapes stay what they are; weights keep their layout when the context is left.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_changed = 0

    @property
    def num_applied(self) -> int:
        """Return how many weights had another layout."""
        return self._num_changed

    def __enter__(self) -> channels_last_weights:
        super().__enter__()
        original = torch.optim.Optimizer.__init__

        @functools.wraps(original)
        def initialize(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            for parameter in updated_by(optimizer):
                self._convert(parameter)

        self.replace(torch.optim.Optimizer, "__init__", initialize)
        return self

    def _convert(self, parameter: torch.Tensor) -> None:
        if parameter.dim() != _NUM_DIMENSIONS:
            return
        if parameter.is_contiguous(memory_format=torch.channels_last):
            return
        parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        self._num_changed += 1

"""Weights of convolutions with their channels last, in a script that does not know of it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import Count, Setting
from breakeven.settings.step_facts import StepFacts
from breakeven.trace import Configuration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from breakeven.settings.in_effect import configured

# Of the weights of two-dimensional convolutions: channels out, channels in, height, width.
_NUM_DIMENSIONS = 4


def _why_not(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if not facts.has_convolution:
        return "no two-dimensional convolution has its channels first"
    return None


def _put_channels_last(run: configured) -> Count:
    """Let an optimizer put the weights that it is given into channels-last memory.

    Convolutions hand on the layout of their weights, so that batches need not be converted. Values
    and shapes stay what they are; weights keep their layout when the context is left.
    """
    import torch

    from breakeven.configure import updated_by

    original = torch.optim.Optimizer.__init__
    num_changed = 0

    @functools.wraps(original)
    def initialize(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        nonlocal num_changed
        original(optimizer, *args, **kwargs)
        for parameter in updated_by(optimizer):
            if parameter.dim() == _NUM_DIMENSIONS and not parameter.is_contiguous(
                memory_format=torch.channels_last
            ):
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
                num_changed += 1

    run.replace(torch.optim.Optimizer, "__init__", initialize)
    return lambda _: num_changed


SETTINGS = (
    Setting(
        name="channels_last",
        meaning="weights of 2-d convolutions in channels-last memory",
        numerics=Numerics.REORDERED,
        family="channels-last",
        title="weights of convolutions in channels-last memory",
        undo="the layout of the weights ends with the run; what is saved loads anywhere",
        apply=_put_channels_last,
        why_not=_why_not,
        gain=0.15,
    ),
)

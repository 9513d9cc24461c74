"""Which step a row of a table of timings is about."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec


class TimedPhase(StrEnum):
    """What is inside the timed region."""

    TRAIN = "train"
    FORWARD_BACKWARD = "forward_backward"
    FORWARD = "forward"
    BACKWARD = "backward"
    INFERENCE = "inference"


class NumberFormat(StrEnum):
    """How the numbers of a step are stored and multiplied, in the words of the tables."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    AMP_FP16 = "amp-fp16"
    AMP_BF16 = "amp-bf16"


class StepCase(msgspec.Struct, frozen=True, kw_only=True):
    """A step without its batch size, device and host: what decides its operators.

    Args:
        workload: Spec of the model: ``torchvision:resnet50``, ``transformers:CLASS?config``,
            ``breakeven:NAME?args`` or ``path.py:function``.
        phase: What is timed.
        number_format: Of parameters and arithmetic; TF32 is fp32 with a switch set.
        optimizer: ``none``, or its name in lower case: ``sgd``, ``adam``, ``adamw``, ...
        h2d: Whether the batch is copied to the device inside the timed region, and from what
            memory.
        zeroes_gradients: Whether gradients are set to zero in place at the start of the step, as
            torch did before 2.0, rather than released.
    """

    workload: str
    phase: TimedPhase
    number_format: NumberFormat = NumberFormat.FP32
    optimizer: str = "none"
    h2d: Literal["none", "pageable", "pinned"] = "none"
    zeroes_gradients: bool = False

"""The device for transformers' Trainer."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn

from breakeven.errors import BreakevenError, UsageError
from breakeven.placement import auto


def training_arguments(
    model: nn.Module, sample_batch: Mapping[str, Any], *, budget_s: float = 1.0, **arguments: Any
) -> Any:
    """Return ``transformers.TrainingArguments`` that train on the fastest device.

    The measurement uses AdamW, the Trainer's default, and ``max_steps``, if given, as the length of
    the run. The function sets ``use_cpu`` and passes all other arguments on.

    Args:
        model: The model to train.
        sample_batch: A batch from the Trainer's collator, with labels and the batch size of the
            training.
        budget_s: As in `breakeven.auto`.
        **arguments: Arguments of ``TrainingArguments``.

    Raises:
        BreakevenError: If transformers is not installed, or the step fails on every device.
        UsageError: If the arguments already contain ``use_cpu``.
    """
    transformers = import_optional("transformers", packages="transformers accelerate")
    if "use_cpu" in arguments:
        raise UsageError("use_cpu is what training_arguments finds out", hint="leave it out")
    max_steps = arguments.get("max_steps", -1)
    device = auto(
        model,
        sample_batch,
        optimizer=torch.optim.AdamW,
        num_steps=max_steps if max_steps > 0 else None,
        budget_s=budget_s,
    )
    return transformers.TrainingArguments(use_cpu=device.type == "cpu", **arguments)


def import_optional(name: str, *, packages: str) -> ModuleType:
    """Import a package on which breakeven does not depend.

    Args:
        name: Name of the module.
        packages: Packages to install, as pip takes them.

    Raises:
        BreakevenError: If it is not installed, or does not load.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BreakevenError(
            f"{name} cannot be imported ({error})", hint=f"pip install {packages}"
        ) from error

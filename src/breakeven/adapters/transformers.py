"""The device for transformers' Trainer, and a callback that warns if another one is faster."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn

from breakeven.errors import BreakevenError, UsageError
from breakeven.placement import auto, choose_device

_PACKAGES = "transformers accelerate"


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
    transformers = import_optional("transformers", packages=_PACKAGES)
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


def device_callback(sample_batch: Mapping[str, Any], *, budget_s: float = 1.0) -> Any:
    """Return a ``TrainerCallback`` that compares devices when training begins.

    If the Trainer runs on another kind of device than the fastest, then the callback warns. It logs
    the measurements as `breakeven.auto` does and changes nothing. If it cannot measure, it warns
    instead of ending the training.

    Args:
        sample_batch: A batch from the Trainer's collator, with labels.
        budget_s: As in `breakeven.auto`.

    Raises:
        BreakevenError: If transformers is not installed.
    """
    transformers = import_optional("transformers", packages=_PACKAGES)

    class DeviceCallback(transformers.TrainerCallback):
        """Compares the Trainer's device with the others when training begins."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Measure, and warn if another device is faster."""
            message = ""
            try:
                choice = choose_device(
                    kwargs["model"],
                    sample_batch,
                    optimizer=kwargs.get("optimizer"),
                    num_steps=state.max_steps if state.max_steps > 0 else None,
                    budget_s=budget_s,
                )
                if choice.device.type != args.device.type:
                    message = (
                        f"the Trainer runs on {args.device}, and this model trains faster on "
                        f"{choice.device} ({choice.reason}); breakeven.training_arguments sets it"
                    )
            except BreakevenError as error:
                message = f"breakeven could not compare devices: {error.sentence}"
            if message:
                warnings.warn(message, RuntimeWarning, stacklevel=2)

    return DeviceCallback()


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

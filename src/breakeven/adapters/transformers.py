"""The device for the Trainer of transformers, and a callback that says when another is faster."""

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

    The device is measured with AdamW, the default of the Trainer; ``max_steps``, if given, is
    the length of the run. ``use_cpu`` is then set, and all else passed on.

    Args:
        model: To be trained.
        sample_batch: As the Trainer's collator makes it, with labels; it has the batch size of
            the training.
        budget_s: As in `breakeven.auto`.
        **arguments: Of ``TrainingArguments``.

    Raises:
        BreakevenError: transformers is not installed, or the step fails on every device.
        UsageError: The arguments already say where to train.
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
    """Return a ``TrainerCallback`` that checks, when training begins, that no device is faster.

    It warns where the Trainer runs on another kind of device than the fastest; what was measured
    is logged as by `breakeven.auto`. It changes nothing, and where it cannot measure it warns
    instead of ending the training.

    Args:
        sample_batch: As the Trainer's collator makes it, with labels.
        budget_s: As in `breakeven.auto`.

    Raises:
        BreakevenError: transformers is not installed.
    """
    transformers = import_optional("transformers", packages=_PACKAGES)

    class DeviceCallback(transformers.TrainerCallback):
        """Compares the Trainer's device with the others when training begins."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Measure, and warn where another device is faster."""
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
                message = f"breakeven could not compare devices: {error}"
            if message:
                warnings.warn(message, RuntimeWarning, stacklevel=2)

    return DeviceCallback()


def import_optional(name: str, *, packages: str) -> ModuleType:
    """Import a package that is no dependency of breakeven.

    Args:
        name: Of the module.
        packages: What to install, as pip takes it.

    Raises:
        BreakevenError: It is not installed, or does not load.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BreakevenError(
            f"{name} cannot be imported ({error})", hint=f"pip install {packages}"
        ) from error

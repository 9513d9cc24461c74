"""Choose the device that trains a model fastest, by briefly training copies of it."""

from __future__ import annotations

import gc
import logging
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from breakeven.errors import BreakevenError, UsageError
from breakeven.placement.racing import LeftOut, PlaceTime, race
from breakeven.placement.training_place import (
    BatchLoss,
    LossFunction,
    OptimizerFactory,
    TrainingPlace,
    devices_present,
)
from breakeven.units import NS_PER_S, format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """The fastest place for a model's training step.

    Args:
        device: The device to train on.
        times: The measurements; empty if there was no choice.
        left_out: Places without a measurement, and why.
        duration_ns: Time that the choice took.
    """

    device: torch.device
    times: tuple[PlaceTime, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    duration_ns: int = 0

    @property
    def reason(self) -> str:
        """Return the measurements and exclusions in one line."""
        parts = [
            f"{time.name}: {format_duration(time.step_ns.median_ns, 2)}" for time in self.times
        ]
        parts += [f"{left.name} left out: {left.reason}" for left in self.left_out]
        return "; ".join(parts) or "it is the only device here"


_LOG = logging.getLogger("breakeven")


def auto(
    model: nn.Module,
    sample_batch: Any,
    *,
    optimizer: torch.optim.Optimizer | OptimizerFactory | None = None,
    loss_fn: LossFunction | None = None,
    num_steps: int | None = None,
    budget_s: float = 1.0,
) -> torch.device:
    """Measure which available device trains the model fastest, and return it.

    Copies of the model run forward, backward and update on the CPU, on one CUDA device of each
    kind and on Apple's GPU. Each step includes the copy of the batch to the device. Parameters,
    gradients, buffers, optimizer, random numbers and settings of the caller do not change.

    If there is only one device, then it is returned at once. If the step fails on a device, then
    that device is left out with a warning. Devices within 1 % of each other count as equal, and
    the CPU wins. The logger ``breakeven`` logs the times at level INFO.

    Args:
        model: The model, measured in training mode.
        sample_batch: A batch as in the training loop. A mapping becomes keyword arguments of the
            model. Of a tuple or list, as many leading values as ``forward`` requires become its
            arguments, and the rest goes to ``loss_fn``. Anything else is the only argument.
        optimizer: The model's optimizer, or a function that makes one for given parameters, such
            as ``torch.optim.Adam``. Without it, the step has no update.
        loss_fn: Called as ``loss_fn(output, *rest_of_the_batch)``. By default the output's
            ``loss``, or the mean of its floating-point tensors.
        num_steps: Steps of the run that follows. The measurement then takes at most 1 % of it, and
            moving the model counts as a cost. A run of less than ``budget_s`` stays on the CPU.
        budget_s: Seconds for the measurement. Half of them are for timed steps, even if a device
            starts slowly. Every device completes at least two steps, so slow ones take longer.

    Raises:
        BreakevenError: If the step fails on every device.
        UsageError: If the arguments are invalid.
    """
    choice = choose_device(
        model,
        sample_batch,
        optimizer=optimizer,
        loss_fn=loss_fn,
        num_steps=num_steps,
        budget_s=budget_s,
    )
    return choice.device


def choose_device(
    model: nn.Module,
    sample_batch: Any,
    *,
    optimizer: torch.optim.Optimizer | OptimizerFactory | None = None,
    loss_fn: LossFunction | None = None,
    num_steps: int | None = None,
    budget_s: float = 1.0,
) -> DeviceChoice:
    """Choose a device as `auto` does, and return it with the measured times.

    Args:
        model: As in `auto`.
        sample_batch: As in `auto`.
        optimizer: As in `auto`.
        loss_fn: As in `auto`.
        num_steps: As in `auto`.
        budget_s: As in `auto`.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    if num_steps is not None and num_steps < 1:
        raise UsageError(f"num_steps is {num_steps}", hint="give the steps of the run: 1 or more")
    if not budget_s > 0:
        raise UsageError(f"budget_s is {budget_s}", hint="give a positive number of seconds")
    present = devices_present()
    if len(present) == 1:
        choice = DeviceChoice(device=present[0])
    else:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        # Use the plain model of a compiled one: compiling a copy would exceed the budget.
        plain: nn.Module = getattr(model, "_orig_mod", model)
        call = BatchLoss(plain, loss_fn)
        places = [TrainingPlace(device, plain, sample_batch, call, optimizer) for device in present]
        choice = _choose(places, num_steps, budget_s)
    took = f", found in {format_duration(choice.duration_ns, 2)}" if choice.duration_ns else ""
    _LOG.info("trains on %s (%s)%s", choice.device, choice.reason, took)
    return choice


def _choose(
    places: Sequence[TrainingPlace], num_steps: int | None, budget_s: float
) -> DeviceChoice:
    try:
        with untouched():
            result = race(places, budget_ns=budget_s * NS_PER_S, num_steps=num_steps)
    finally:
        for place in places:
            place.close()
        # Free the memory on devices that were not chosen.
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            gc.collect()  # a graph of the last step may be in a reference cycle
            torch.cuda.empty_cache()
    for left in result.left_out:
        if isinstance(left.error, UsageError):
            raise left.error
    if result.winner is None:
        names_by_reason: dict[str, list[str]] = {}
        for left in result.left_out:
            names_by_reason.setdefault(left.reason, []).append(left.name)
        reasons = "; ".join(f"{', '.join(names)}: {why}" for why, names in names_by_reason.items())
        raise BreakevenError(
            f"a step of the model fails on every device ({reasons})",
            hint="pass the batch as the model takes it, and loss_fn= if its output is no loss",
        ) from result.left_out[0].error
    for left in result.left_out:
        if left.error is not None:
            left.error.__traceback__ = None  # its frames would keep the copies alive
            warnings.warn(
                f"breakeven leaves out {left.name}: {left.reason}", RuntimeWarning, stacklevel=4
            )
    place = next(place for place in places if place.name == result.winner)
    return DeviceChoice(
        device=place.device,
        times=result.times,
        left_out=result.left_out,
        duration_ns=result.duration_ns,
    )


@contextmanager
def untouched() -> Iterator[None]:
    """Restore random numbers and hooks of optimizers on exit.

    Inside, gradients are recorded even if the caller disables them, and no hook sees a step.
    """
    # Only measurements need compiled steps.
    from faststep.guards import unwatched_steps

    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = torch.get_rng_state()
    try:
        with unwatched_steps(), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)

"""A model with a batch and a loss, and its step as a row of a table times it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from breakeven.capture import FakeSession
from breakeven.errors import WorkloadError
from breakeven.trace import NumberFormat, StepCase, TimedPhase
from breakeven.workloads.spec import suggest

PARAMETER_DTYPES = {
    NumberFormat.FP64: torch.float64,
    NumberFormat.FP16: torch.float16,
    NumberFormat.BF16: torch.bfloat16,
}
AUTOCAST_DTYPES = {
    NumberFormat.AMP_FP16: torch.float16,
    NumberFormat.AMP_BF16: torch.bfloat16,
}
# All use the CUDA path, which updates lists of tensors at once. "sgd" is SGD for image classifiers,
# with momentum and weight decay; plain SGD has a separate name.
_FACTORIES: dict[str, partial[torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=True),
    "sgd-plain": partial(torch.optim.SGD, lr=0.1, foreach=True),
    # timm's optimizer before torch 2, the first torch to update lists of tensors by default.
    "sgd-momentum-nesterov": partial(
        torch.optim.SGD, lr=1e-4, momentum=0.9, nesterov=True, foreach=False
    ),
    "adam": partial(torch.optim.Adam, lr=1e-3, foreach=True),
    "adamw": partial(torch.optim.AdamW, lr=1e-3, foreach=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3, foreach=True),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2, foreach=True),
    "adadelta": partial(torch.optim.Adadelta, foreach=True),
    "nadam": partial(torch.optim.NAdam, foreach=True),
    "radam": partial(torch.optim.RAdam, foreach=True),
}

_VARIANTS: dict[str, dict[str, bool | None]] = {
    "foreach": {"foreach": True},
    "fused": {"fused": True, "foreach": None},
    "loop": {"foreach": False},
}
# AdamW of llm-foundry's trainer, which loops over its parameters.
_OTHER_NAMES = {"decoupled_adamw": "adamw-loop"}


class TimedStep:
    """One case at any batch size, called as a benchmark's loop calls it.

    Args:
        case: The case to time.
        model: The model; the optimizer updates it across changes of the batch size.
        session: Records copies and waits; None for real tensors, with the batch on the device.
        device: The device that computes.
    """

    def __init__(
        self,
        case: StepCase,
        model: nn.Module,
        session: FakeSession | None = None,
        *,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - a value
    ) -> None:
        self.model = model
        self._case = case
        self._session = session
        self._device = device
        self._parameters = [value for value in model.parameters() if value.requires_grad]
        self._optimizer = make_optimizer(
            case.optimizer if case.phase is TimedPhase.TRAIN else "none", self._parameters
        )
        # On fake CPU tensors, the scaler works as on CUDA except for its device name.
        self._scaler = torch.amp.GradScaler(
            device.type,
            enabled=self._optimizer is not None and case.number_format is NumberFormat.AMP_FP16,
        )

    @property
    def needs_warm_up(self) -> bool:
        """Return whether the first step differs, because it makes gradients or state."""
        return self._case.phase in (TimedPhase.TRAIN, TimedPhase.FORWARD_BACKWARD)

    def run(self, built: BuiltStep) -> None:
        """Do one step."""
        phase = self._case.phase
        is_inference = phase is TimedPhase.INFERENCE
        built.model.train(built.uses_training_mode and not is_inference)
        self._copy(built.inputs)
        if is_inference:
            with torch.no_grad(), self._autocast():
                built.forward()
        elif phase is TimedPhase.FORWARD:
            with self._autocast():
                built.forward()
        else:
            self._copy(built.targets)
            self._train(built)
        if phase is not TimedPhase.TRAIN or built.waits_for_step:
            # Benchmarks of a phase wait after each iteration; those of throughput do not.
            if self._session is not None:
                self._session.wait()
            elif self._device.type != "cpu":
                torch.accelerator.synchronize(self._device)

    def _copy(self, tensors: Iterable[torch.Tensor]) -> None:
        if self._session is not None:
            self._session.copy_to_device(tensors)

    def _train(self, built: BuiltStep) -> None:
        if self._case.zeroes_gradients or not built.keeps_gradients:
            for parameter in self._parameters:
                if parameter.grad is None:
                    continue
                if self._case.zeroes_gradients:
                    parameter.grad.detach_()
                    parameter.grad.zero_()
                else:
                    parameter.grad = None
        with self._autocast():
            loss = built.loss(built.forward())
        start = torch.ones_like(loss) if loss.dim() else None
        if not built.scales_loss:
            loss.backward(start)
            if self._optimizer is not None:
                self._optimizer.step()
            return
        self._scaler.scale(loss).backward(start)
        if self._optimizer is None:
            return
        if built.max_grad_norm is not None:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._parameters, built.max_grad_norm, foreach=True)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if built.reads_loss:
            loss.item()

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = AUTOCAST_DTYPES.get(self._case.number_format)
        # On fake tensors, CPU autocast has the same effect as CUDA's.
        return torch.autocast(
            self._device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None
        )


def make_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer | None:
    """Return the optimizer that a table calls ``name``; None for ``none``.

    Args:
        name: Name of the optimizer, optionally with ``-foreach``, ``-fused`` or ``-loop``, which
            says how it iterates over its parameters; by default ``foreach``.
        parameters: The parameters to update.

    Raises:
        WorkloadError: If there is none of that name.
    """
    if name == "none":
        return None
    found, variant = _OTHER_NAMES.get(name.lower(), name.lower()), "foreach"
    changes: dict[str, bool | None] | None = {}
    if found not in _FACTORIES:
        found, _, variant = found.rpartition("-")
        changes = _VARIANTS.get(variant)
    factory = _FACTORIES.get(found)
    if (
        factory is None
        or changes is None
        or (variant == "fused" and "fused" not in inspect.signature(factory.func).parameters)
    ):
        raise WorkloadError(
            f"there is no optimizer {name!r}", hint=suggest(name, ("none", *_FACTORIES))
        )
    return factory(parameters, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltStep:
    """A model at one batch size, ready to run.

    Args:
        model: The model, whose parameters the optimizer updates.
        inputs: Tensors of the batch for the model.
        targets: Tensors of the batch for the loss alone.
        forward: Calls the model with the inputs.
        loss: Turns the result of ``forward`` into the start of ``backward``. If that is no scalar,
            then ``backward`` starts with a gradient of ones.
        uses_training_mode: Whether dropout and batch statistics are on, except in inference.
        keeps_gradients: Whether the loop accumulates gradients instead of clearing them.
        max_grad_norm: Norm to clip gradients to before the update; None for no clipping.
        reads_loss: Whether the script reads the loss in each step.
        scales_loss: Whether the loss is scaled if autocast computes in fp16.
        waits_for_step: Whether the loop waits for the device after each training step.
    """

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    targets: tuple[torch.Tensor, ...]
    forward: Callable[[], Any]
    loss: Callable[[Any], torch.Tensor]
    uses_training_mode: bool = True
    keeps_gradients: bool = False
    max_grad_norm: float | None = None
    reads_loss: bool = False
    scales_loss: bool = True
    waits_for_step: bool = False


# Called with a batch size, after the model is built.
StepFactory = Callable[[int], BuiltStep]

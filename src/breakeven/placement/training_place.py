"""The available devices, and copies of the user's model that train there briefly."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from breakeven.errors import BreakevenError, UsageError
from breakeven.memory import available_bytes
from breakeven.units import format_bytes

# Least number of parameter-sized tensors in a step: parameters and gradients. Most optimizers keep
# two more.
_COPIES_IN_STEP = 2
_COPIES_IN_OPTIMIZER = 2
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class TrainingPlace:
    """Forward, backward and update of a copy of a model on one device.

    If the batch is on another device, then each step starts with its copy to this one.

    Args:
        device: The device to train on.
        model: The model; `prepare` copies it and leaves it unchanged.
        batch: The sample batch, also copied.
        call: Calls the model and computes the loss.
        optimizer: The model's optimizer, or a function that makes one; None for no update.
    """

    def __init__(
        self,
        device: torch.device,
        model: nn.Module,
        batch: Any,
        call: BatchLoss,
        optimizer: torch.optim.Optimizer | OptimizerFactory | None,
    ) -> None:
        self.device = device
        self.name = str(device)
        if device.type == "cuda":
            self.name += f" ({torch.cuda.get_device_name(device)})"
        self.starts_up = device.type != "cpu"
        self.one_off_ns = 0.0
        self._original = (model, batch, optimizer)
        self._call = call
        self._restore_random: Callable[[], object] = lambda: None
        self._model: nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._batch: Any = None

    def prepare(self) -> None:
        """Copy the model, its optimizer and the batch to the device."""
        model, batch, optimizer = self._original
        self._check_memory(model, has_optimizer=optimizer is not None)
        if self.starts_up:
            self._start_device()
        started_ns = perf_counter_ns()
        copied_model, tensors = copy_model(model, self.device)
        self.synchronize()
        if any(parameter.device != self.device for parameter in model.parameters()):
            self.one_off_ns = float(perf_counter_ns() - started_ns)
        self._model = copied_model
        if optimizer is not None:
            self._optimizer = copy_optimizer(optimizer, copied_model, tensors, self.device)
        self._batch = map_tensors(self._own_copy, batch)

    def run_step(self) -> None:
        """Copy the batch, run forward, backward if there is a gradient, and update."""
        model, optimizer = self._model, self._optimizer
        assert model is not None, "prepared before it runs"
        batch = self._batch
        if self.starts_up:
            batch = map_tensors(
                lambda tensor: tensor.to(self.device, non_blocking=tensor.is_pinned()), batch
            )
        model.zero_grad(set_to_none=True)
        loss = self._call.loss(model, batch)
        if loss.requires_grad:
            loss.backward()
        if optimizer is not None:
            optimizer.step()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def close(self) -> None:
        """Free the copies, and restore the device's random numbers."""
        self._model = self._optimizer = self._batch = None
        self._restore_random()

    def _start_device(self) -> None:
        """Start the device, so that the cost of moving the model excludes it."""
        if self.device.type == "cuda":
            state = torch.cuda.get_rng_state(self.device)
            self._restore_random = lambda: torch.cuda.set_rng_state(state, self.device)
        elif self.device.type == "mps":
            state = torch.mps.get_rng_state()
            self._restore_random = lambda: torch.mps.set_rng_state(state)
        torch.zeros(1, device=self.device)
        self.synchronize()

    def _check_memory(self, model: nn.Module, *, has_optimizer: bool) -> None:
        free = available_bytes() if self.device.type == "cpu" else None
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
        if free is None:
            return
        num_copies = _COPIES_IN_STEP + _COPIES_IN_OPTIMIZER * has_optimizer
        needed = sum(
            tensor.numel() * tensor.element_size() * (num_copies if tensor.requires_grad else 1)
            for tensor in (*model.parameters(), *model.buffers())
            if not is_lazy(tensor)
        )
        if needed > free:
            raise BreakevenError(
                f"a copy of the model with gradients and optimizer state takes "
                f"{format_bytes(needed)}, and {format_bytes(free)} are free"
            )

    def _own_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor of the sample batch to the device where the user's loop has it."""
        lies_here = tensor.device == self.device
        target = self.device if lies_here or not self.starts_up else torch.device("cpu")
        copied = tensor.detach().to(target, copy=True)
        if tensor.is_pinned():
            copied = copied.pin_memory()
        return copied.requires_grad_(tensor.requires_grad)


def copy_model(model: nn.Module, device: torch.device) -> tuple[nn.Module, dict[int, Any]]:
    """Return a copy of a model on a device, and the copied tensors by the originals' ``id``.

    Parameters are copied straight to the device, so their own device needs no room for them.
    Gradients are not copied.

    Args:
        model: The original; it does not change.
        device: The device of the copy.
    """
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if is_lazy(tensor):
            continue  # a lazy layer gets its shape in the first forward
        values = tensor.detach().to(device, copy=True)
        if isinstance(tensor, nn.Parameter):
            values = nn.Parameter(values, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = values
    copied = dict(memo)
    return copy.deepcopy(model, memo).to(device).train(), copied


def copy_optimizer(
    optimizer: torch.optim.Optimizer | OptimizerFactory,
    model: nn.Module,
    copied_tensors: dict[int, Any],
    device: torch.device,
) -> torch.optim.Optimizer:
    """Return an optimizer for a copied model whose updates do not change the numbers.

    Its learning rates are 0. The arithmetic is the same, but a model that trains on one batch
    cannot diverge while it is timed.

    Args:
        optimizer: The original model's optimizer, or a function that makes one for parameters.
        model: The copy.
        copied_tensors: Its tensors by the originals' ``id``.
        device: The device of the copy.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        made = optimizer(model.parameters())
    else:
        memo = dict(copied_tensors)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in copied_tensors:
                    raise UsageError(
                        "the optimizer has parameters that are not the model's",
                        hint="pass the optimizer of this model, or none",
                    )
                for value in optimizer.state.get(parameter, {}).values():
                    if isinstance(value, torch.Tensor):
                        # The step count is on the CPU unless a kernel reads it.
                        # Source: torch.optim.Optimizer._process_value_according_to_param_policy.
                        follows = value.dim() > 0 or group.get("fused") or group.get("capturable")
                        target = device if follows else torch.device("cpu")
                        memo[id(value)] = value.detach().to(target, copy=True)
        made = copy.deepcopy(optimizer, memo)
        # deepcopy skips attributes outside of the optimizer's state. A ``step`` on the object
        # itself is a scheduler's wrapper around the original.
        for name, value in vars(optimizer).items():
            if name != "step" and name not in vars(made):
                setattr(made, name, copy.deepcopy(value, memo))
    for group in made.param_groups:
        if "lr" in group:
            group["lr"] = group["lr"] * 0
    return made


def devices_present() -> tuple[torch.device, ...]:
    """Return the CPU, one CUDA device of each GPU model, and Apple's GPU if there is one.

    If several CUDA devices have one name, then the current device represents them, so that each
    process of a distributed run keeps its own.
    """
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        current = torch.cuda.current_device()
        by_name: dict[str, int] = {}
        for index in (current, *range(torch.cuda.device_count())):
            by_name.setdefault(torch.cuda.get_device_name(index), index)
        devices += [torch.device("cuda", index) for index in by_name.values()]
    if torch.backends.mps.is_available():
        devices.append(torch.device("mps"))
    return tuple(devices)


LossFunction = Callable[..., torch.Tensor]


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """Return a batch with ``function`` applied to each tensor; mappings become plain dicts.

    Args:
        function: Maps a tensor to a tensor.
        batch: A tensor, an array, or tuples, lists and mappings of them; other values stay.
    """
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, np.ndarray):
        return function(torch.from_numpy(np.array(batch)))  # one that torch may write to
    if isinstance(batch, Mapping):
        return {key: map_tensors(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple
        return type(batch)(*(map_tensors(function, value) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map_tensors(function, value) for value in batch)
    return batch


class BatchLoss:
    """Calls a model on a batch and computes the loss.

    A mapping becomes keyword arguments. Of a tuple or list, as many leading values as ``forward``
    requires become positional arguments, and the rest follows the output in ``loss_fn``: a data
    loader's ``(x, y)`` becomes ``model(x)``, then ``loss_fn(output, y)``. Anything else is the only
    argument.

    Args:
        model: The model whose ``forward`` decides the number of arguments.
        loss_fn: Takes the output and the rest of the batch. By default, the output's ``loss`` if
            it has one (transformers), else the sum of the means of its floating-point tensors: a
            stand-in whose gradient reaches all of the model.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction | None) -> None:
        self._loss_fn = loss_fn
        self._num_inputs = _num_required(model)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the loss of a model, or of a copy of it, on a batch."""
        rest: tuple[Any, ...] = ()
        if isinstance(batch, Mapping):
            output = model(**batch)
        elif isinstance(batch, tuple | list):
            num_inputs = self._num_inputs
            if num_inputs is None:  # it takes any number: pass all but the target
                num_inputs = len(batch) - (self._loss_fn is not None and len(batch) > 1)
            output = model(*batch[:num_inputs])
            rest = tuple(batch[num_inputs:])
        else:
            output = model(batch)
        return self._loss_fn(output, *rest) if self._loss_fn else _default_loss(output)


def _num_required(model: nn.Module) -> int | None:
    """Return the number of positional arguments ``forward`` requires; None for any number."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # compiled by TorchScript, or not Python at all
        return 1
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    required = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    # Pass one argument even if all are optional.
    return max(1, len(required))


def _default_loss(output: Any) -> torch.Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    leaves: list[torch.Tensor] = []
    map_tensors(lambda tensor: leaves.append(tensor) or tensor, output)
    found = [tensor for tensor in leaves if tensor.is_floating_point()]
    if not found:
        raise UsageError(
            f"the model's output ({type(output).__name__}) has no floating-point tensor to take "
            "as a loss",
            hint="pass loss_fn=, which takes the output and returns the loss",
        )
    # Prefer differentiable tensors: a policy's sampled actions are not.
    differentiable = [tensor for tensor in found if tensor.requires_grad] or found
    return sum((tensor.mean() for tensor in differentiable[1:]), differentiable[0].mean())

"""Run a block or a step function on the model's fastest device, and restore everything after."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_map

from breakeven.configure import set_num_threads
from breakeven.errors import UsageError
from breakeven.placement.automatic import DeviceChoice, choose_device
from breakeven.placement.training_place import LossFunction

_P = ParamSpec("_P")
_R = TypeVar("_R")


def on_fastest(
    model: nn.Module,
    sample_batch: Any = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    loss_fn: LossFunction | None = None,
    num_steps: int | None = None,
    budget_s: float = 1.0,
) -> OnFastest:
    """Move a model to its fastest device, for a ``with`` block or for a step function.

    As a context manager, it returns the device and restores everything at the end::

        with breakeven.on_fastest(model, (x, y), loss_fn=loss_fn) as device:
            for x, y in loader:
                train(model, x.to(device), y.to(device))

    As a decorator, it moves tensors among the arguments of every call to the device. Without a
    sample batch, it measures with the arguments of the first call::

        @breakeven.on_fastest(model, optimizer=optimizer, loss_fn=loss_fn)
        def step(x, y): ...

    The measurement runs copies of the model, never the step function: see `auto`. On the CPU it
    tries 1 thread, half of torch's current threads, and all of them. A block keeps the chosen
    threads until its end; then the trained model and the optimizer's state return to their former
    device. A decorated function sets the threads during each call and leaves the model on its
    device.

    Args:
        model: Moved in place, so optimizers keep their parameters.
        sample_batch: As in `auto`; a context manager needs it.
        optimizer: The model's optimizer. The measurement includes it, and its state moves too. It
            is required if it has already made steps.
        loss_fn: As in `auto`.
        num_steps: As in `auto`.
        budget_s: As in `auto`.

    Raises:
        BreakevenError: If the step fails on every device.
        UsageError: If the model is on several devices, or there is no sample batch.
    """
    return OnFastest(
        model,
        sample_batch,
        optimizer=optimizer,
        loss_fn=loss_fn,
        num_steps=num_steps,
        budget_s=budget_s,
    )


class OnFastest:
    """The result of `on_fastest`: a context manager and a decorator.

    Args:
        model: The model to move.
        sample_batch: The batch to measure with; None for the first call's arguments.
        optimizer: The optimizer whose state moves too.
        **options: Options of `choose_device`.
    """

    def __init__(
        self,
        model: nn.Module,
        sample_batch: Any,
        *,
        optimizer: torch.optim.Optimizer | None,
        **options: Any,
    ) -> None:
        self._model = model
        self._sample_batch = sample_batch
        self._optimizer = optimizer
        self._options = options
        self._before: tuple[torch.device, int] | None = None

    def choose(self, sample_batch: Any) -> DeviceChoice:
        """Return the fastest place for the model on a batch; move nothing."""
        most = torch.get_num_threads()  # never exceed the process's current limit
        return choose_device(
            self._model,
            sample_batch,
            optimizer=self._optimizer,
            thread_counts=(most, max(1, most // 2), 1),
            **self._options,
        )

    def __enter__(self) -> torch.device:
        """Measure, move the model, set the threads, and return the device."""
        if self._before is not None:
            raise UsageError("this block is entered already", hint="call on_fastest once per block")
        if self._sample_batch is None:
            raise UsageError(
                "on_fastest has no sample batch to measure with",
                hint="with breakeven.on_fastest(model, batch) as device: ...",
            )
        home = _home_device(self._model)
        choice = self.choose(self._sample_batch)
        self._before = (home, torch.get_num_threads())
        try:
            set_num_threads(choice.num_threads)
            self._move(choice.device)
        except BaseException:
            self.__exit__()
            raise
        return choice.device

    def __exit__(self, *_: object) -> None:
        """Restore the threads, and move the model and the optimizer's state back."""
        assert self._before is not None, "entered before it is left"
        (device, num_threads), self._before = self._before, None
        set_num_threads(num_threads)
        self._move(device)

    def __call__(self, step: Callable[_P, _R]) -> OnFastestStep[_P, _R]:
        """Return a step function that runs on the model's fastest device."""
        return OnFastestStep(self, step)

    def settle(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> DeviceChoice:
        """Choose by the first call's arguments, and move the model permanently."""
        _home_device(self._model)
        sample_batch = self._sample_batch
        if sample_batch is None:
            values = (*arguments, *keywords.values())
            sample_batch = values[0] if len(values) == 1 else values
        choice = self.choose(sample_batch)
        self._move(choice.device)
        return choice

    def _move(self, device: torch.device) -> None:
        self._model.to(device)
        optimizer = self._optimizer
        if optimizer is None:
            return
        for group in optimizer.param_groups:
            on_device = group.get("fused") or group.get("capturable")
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                for name, value in state.items():
                    # Step counts stay on the CPU unless a kernel reads them.
                    if isinstance(value, torch.Tensor) and (value.dim() > 0 or on_device):
                        state[name] = value.to(device)


class OnFastestStep(Generic[_P, _R]):
    """A decorated step function.

    Args:
        owner: Chooses the device and moves the model at the first call.
        step: The user's function.

    Attributes:
        choice: The chosen device and the reason; None before the first call.
    """

    def __init__(self, owner: OnFastest, step: Callable[_P, _R]) -> None:
        self._owner = owner
        self._step = step
        self.choice: DeviceChoice | None = None
        functools.update_wrapper(self, step)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run a step with its tensors on the chosen device."""
        if self.choice is None:
            self.choice = self._owner.settle(args, kwargs)
        device, num_threads = self.choice.device, torch.get_num_threads()
        set_num_threads(self.choice.num_threads)
        try:
            args, kwargs = _moved(args, device), _moved(kwargs, device)
            return self._step(*args, **kwargs)
        finally:
            set_num_threads(num_threads)


def _home_device(model: nn.Module) -> torch.device:
    """Return the model's only device.

    Raises:
        UsageError: If it is on several devices.
    """
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise UsageError(f"the model is on several devices: {names}", hint="move it to one first")
    return devices.pop() if devices else torch.device("cpu")


def _moved(value: Any, device: torch.device) -> Any:
    """Return a user's argument, of the same type, with its tensors on a device."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=leaf.is_pinned())
        is_batch = isinstance(leaf, Mapping) and hasattr(leaf, "to")  # of a tokenizer
        return leaf.to(device) if is_batch else leaf  # pyright: ignore

    return tree_map(move, value)

"""Record the losses and gradients of the first steps of a training loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from breakeven.capture.answers import NumbersRun
from breakeven.capture.record.optimizer_hooks import Arguments, around_closure
from breakeven.capture.record.repeatable import (
    WeightNoise,
    random_state_digest,
    repeatable_random_numbers,
)
from breakeven.capture.record.tensor_numbers import ParameterNames, tensor_numbers
from breakeven.capture.requests import RunRequest
from breakeven.capture.sessions.session import UpdateSession
from breakeven.configure import Patches, groups_of
from breakeven.settings import configured
from breakeven.trace import Configuration
from breakeven.verdict import LOSS_KEY, RecordedNumbers, StepNumbers, TensorNumbers

# However slow they are: the second shows what the first update did.
_FEWEST_STEPS = 2


class NumbersSession(UpdateSession):
    """Records the first steps of a training loop, and changes none of their numbers.

    Args:
        request: How many steps, where to write them, and under which configuration.
        on_done: Called from the training loop after the last of them.
        on_step: As in every session.
    """

    def __init__(
        self, request: RunRequest, on_done: Callable[[], None],
        on_step: Callable[[int, bool], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        super().__init__(request, on_done, on_step)
        self._numbers: dict[int, int] = {}
        self._names = ParameterNames()
        self._noise = WeightNoise(request.weight_noise_roundoffs, request.weight_noise_seed)
        self._losses: list[TensorNumbers] = []
        self._gradients: list[TensorNumbers] = []
        self._steps: list[StepNumbers] = []
        self._rng_digest = b""
        self._arithmetic = ""
        self._first_step_s: float | None = None

    @property
    def num_steps(self) -> int:
        """Return the updates so far."""
        return len(self._steps)

    def __enter__(self) -> NumbersSession:
        super().__enter__()
        request = self._request
        self.enter_context(repeatable_random_numbers())
        if not request.on_gpu:
            self._run_cuda_by_cpu()
        if request.compiles:
            import torch._inductor.config as inductor  # slow, and only of use for compiled code

            # Its own generator draws other numbers than the operators that it replaces.
            self.enter_context(inductor.patch(fallback_random=True))
        self.enter_context(self._loaders)
        patches = self.enter_context(Patches())
        self._watch_backward(patches)
        if request.configuration == Configuration():
            self._watch_autocast(patches)
        self.enter_context(self._optimizers)
        self.callback(register_optimizer_step_pre_hook(self._before_update).remove)
        self.enter_context(self._noise)
        device = "cuda" if request.on_gpu else "cpu"
        self.enter_context(configured(request.configuration, device=device))
        return self

    def result(self) -> NumbersRun | None:
        """Write what is recorded, and return how much that is; None when there is no step."""
        if not self._steps:
            return None
        recorded = RecordedNumbers(
            steps=tuple(self._steps),
            rng_digest=self._rng_digest,
            arithmetic=self._arithmetic,
        )
        path = Path(os.fsdecode(self._request.raw_numbers_path))
        path.write_bytes(msgspec.msgpack.encode(recorded))
        return NumbersRun(num_steps=len(self._steps))

    def _mark(self, optimizer: int) -> None:
        self._steps.append(
            StepNumbers(losses=tuple(self._losses), gradients=tuple(self._gradients))
        )
        self._losses.clear()
        self._gradients.clear()
        # Of the step: a script that has ended may have drawn more since, or been given them back.
        self._rng_digest = random_state_digest()
        self._noise.move(self._optimizers.parameters())
        self._on_step(len(self._steps), False)
        self._first_step_s = self._first_step_s or monotonic()
        is_late = monotonic() - self._first_step_s > self._request.budget_s
        is_enough = len(self._steps) >= self._request.num_recorded_steps
        is_enough = is_enough or (is_late and len(self._steps) >= _FEWEST_STEPS)
        if is_enough and (optimizer < 0 or self._optimizers.is_round_known()):
            self._on_done()

    def _watch_backward(self, patches: Patches) -> None:
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            each = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
            for tensor in each:
                if isinstance(tensor, torch.Tensor):  # or an edge of autograd's graph
                    self._add_loss(tensor)
            original(each, *args, **kwargs)

        patches.replace(torch.autograd, "backward", backward)

    def _add_loss(self, loss: torch.Tensor) -> None:
        number = len(self._losses) + 1
        name = "the loss" if number == 1 else f"loss {number}"
        self._losses.append(tensor_numbers(loss, key=f"{LOSS_KEY}{number}", name=name))

    def _watch_autocast(self, patches: Patches) -> None:
        """Note the format that the script's own autocast asks for."""
        region = torch.amp.autocast_mode.autocast
        original = region.__enter__
        device = "cuda" if self._request.on_gpu else "cpu"

        def enter(autocast: Any) -> Any:
            if autocast._enabled and autocast.device == device:
                self._arithmetic = str(autocast.fast_dtype).removeprefix("torch.")
            return original(autocast)

        patches.replace(region, "__enter__", enter)

    def _before_update(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        def evaluate(closure: Callable[[], Any]) -> Any:
            result = closure()
            self._record_gradients(optimizer)
            return result

        changed = around_closure(optimizer, args, kwargs, evaluate)
        if changed is None:
            self._record_gradients(optimizer)
        return changed

    def _record_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the gradients of an update; of an evaluation after others, its own instead."""
        number = self._numbers.setdefault(id(optimizer), len(self._numbers))
        # A fused optimizer divides by GradScaler's factor by itself.
        scale = getattr(optimizer, "grad_scale", None)
        self._gradients.clear()
        for group, parameters in enumerate(groups_of(optimizer)):
            for index, parameter in enumerate(parameters["params"]):
                if parameter.grad is None:
                    continue
                key = f"optimizer{number}.group{group}.{index}"
                name = self._names.name_of(parameter) or key
                self._gradients.append(
                    tensor_numbers(parameter.grad, key=key, name=name, scale=scale)
                )

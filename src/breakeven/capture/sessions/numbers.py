"""Recording of losses and gradients in the first steps of a training loop.

A script without a seed draws the same random numbers in every such run.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from breakeven.capture.messages import NumbersRun, RunRequest
from breakeven.capture.pretend.stand_ins import keep_stock_steps
from breakeven.capture.record.hooks import Arguments, around_closure
from breakeven.capture.sessions.session import UpdateSession
from breakeven.capture.sessions.trained import Trained
from breakeven.configure import Patches, groups_of, named_parameters_of, updated_by
from breakeven.settings import configured
from breakeven.trace import Configuration
from breakeven.verdict import LOSS_KEY, RecordedNumbers, StepNumbers, TensorNumbers
from faststep.step_difference import move_weights

# The least number of steps, however slow: the second shows the effect of the first update.
_FEWEST_STEPS = 2


class NumbersSession(UpdateSession):
    """Records the first steps of a training loop, without changing their numbers.

    Args:
        request: The run, with the number of steps, the file and the configuration.
        on_done: Called from the training loop after the last step.
        on_step: As in every session.
    """

    def __init__(
        self, request: RunRequest, on_done: Callable[[], None],
        on_step: Callable[[int, bool], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        super().__init__(request, on_done, on_step)
        self._numbers: dict[int, int] = {}
        self._trained = Trained(self._optimizers, "cuda" if request.on_gpu else "")
        self._names = ParameterNames()
        self._noise = WeightNoise(request.weight_noise_roundoffs, request.weight_noise_seed)
        self._losses: list[TensorNumbers] = []
        self._gradients: list[TensorNumbers] = []
        self._steps: list[StepNumbers] = []
        self._rng_digest = b""
        self._first_step_s: float | None = None

    @property
    def num_steps(self) -> int:
        """Return the number of updates so far."""
        return len(self._steps)

    def _apply(self) -> None:
        request = self._request
        device = "cuda" if request.on_gpu else "cpu"
        self.enter_context(repeatable_random_numbers())
        if not request.on_gpu:
            self._run_cuda_by_cpu()
        if request.compiles:
            import torch._inductor.config as inductor  # slow, and needed only for compiled code

            # Inductor's generator draws other numbers than the operators that it replaces.
            self.enter_context(inductor.patch(fallback_random=True))
        self.enter_context(self._loaders)
        backward = torch.autograd.backward

        def record_losses(tensors: Any, *args: Any, **kwargs: Any) -> None:
            each = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
            for tensor in each:
                if isinstance(tensor, torch.Tensor):  # or an edge of autograd's graph
                    number = len(self._losses) + 1
                    name = "the loss" if number == 1 else f"loss {number}"
                    key = f"{LOSS_KEY}{number}"
                    self._losses.append(tensor_numbers(tensor, key=key, name=name))
            backward(each, *args, **kwargs)

        self.replace(torch.autograd, "backward", record_losses)
        if request.configuration == Configuration():  # the script's own
            self.enter_context(self._trained)
        self.enter_context(self._optimizers)
        self.callback(register_optimizer_step_pre_hook(self._before_update).remove)
        self.enter_context(self._noise)
        if request.configuration.fast_step:
            # A compiled step leaves no gradients; each step compares itself with this one.
            keep_stock_steps(self)
        self.enter_context(configured(request.configuration, device=device))

    def result(self) -> NumbersRun | None:
        """Write the recording, and return its number of steps; None without a step."""
        if not self._steps:
            return None
        recorded = RecordedNumbers(
            steps=tuple(self._steps),
            rng_digest=self._rng_digest,
            arithmetic=str(self._trained.autocast_dtype or "").removeprefix("torch."),
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
        # Digest the state now: a script that has ended may have drawn more or restored it.
        self._rng_digest = random_state_digest()
        self._noise.move(self._optimizers.parameters())
        self._on_step(len(self._steps), False)
        self._first_step_s = self._first_step_s or monotonic()
        is_late = monotonic() - self._first_step_s > self._request.budget_s
        is_enough = len(self._steps) >= self._request.num_recorded_steps
        is_enough = is_enough or (is_late and len(self._steps) >= _FEWEST_STEPS)
        if is_enough and (optimizer < 0 or self._optimizers.is_round_known()):
            self._on_done()

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
        """Record the gradients of an update; a repeated evaluation replaces earlier ones."""
        number = self._numbers.setdefault(id(optimizer), len(self._numbers))
        # A fused optimizer itself divides by GradScaler's factor.
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


# Enough elements to see an error in any part of a tensor; norm and digest cover all of it.
_MOST_ELEMENTS = 4096


def tensor_numbers(
    tensor: torch.Tensor, *, key: str, name: str, scale: torch.Tensor | None = None
) -> TensorNumbers:
    """Return the recorded numbers of a tensor.

    Args:
        tensor: A loss or a gradient, on any device, dense or sparse.
        key: Key of the same tensor in every run.
        name: Name for the user.
        scale: Factor to divide out; None for no factor.
    """
    digest = hashlib.sha256()
    dtype = str(tensor.dtype).removeprefix("torch.")
    # Autograd must not record this, and the script's autocast region must not round it.
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        tensor = tensor.detach()
        shape = tuple(tensor.shape)
        if tensor.layout is not torch.strided:
            tensor = tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor.to_dense()
        if tensor.is_sparse:
            digest.update(_bytes_of(tensor.indices().cpu()))
            tensor = tensor.values()
            shape = tuple(tensor.shape)
        if scale is not None:
            # Like GradScaler, multiply by the reciprocal.
            tensor = tensor * scale.double().reciprocal().to(tensor.dtype)
        tensor = tensor.cpu().resolve_conj().resolve_neg()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        row = tensor.shape[-1] if tensor.dim() else 1
        # Order elements by index, for any memory layout.
        flat = tensor.contiguous().flatten()
        digest.update(_bytes_of(flat))
        is_finite = torch.isfinite(flat)
        num_not_finite = int((~is_finite).sum())
        finite = torch.where(is_finite, flat, 0) if num_not_finite else flat
        # Choose a stride that reaches every column of a matrix.
        stride = max(1, math.ceil(flat.numel() / _MOST_ELEMENTS))
        while stride > 1 and math.gcd(stride, row) > 1:
            stride += 1
        return TensorNumbers(
            key=key,
            name=name,
            dtype=dtype,
            shape=shape,
            digest=digest.digest(),
            norm=float(torch.linalg.vector_norm(finite, dtype=torch.float64)),
            num_not_finite=num_not_finite,
            elements=flat[::stride].double().numpy().tobytes(),
        )


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data


# The prefix that torch.compile adds to names in wrapped modules.
_COMPILED = "_orig_mod."


class ParameterNames:
    """Finds the names of parameters in the models that hold them.

    It searches all objects of the process for models, once per unknown parameter. A hook in the
    models' calls would be compiled into them, or prevent their compilation.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def name_of(self, parameter: torch.Tensor) -> str:
        """Return the name in the outermost model; empty without a model."""
        if id(parameter) not in self._names:
            # Check the type, since an object may claim another class.
            models = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
            for model in models:
                if "_modules" in vars(model):  # its constructor has run
                    for name, each in named_parameters_of(model):
                        # The outermost model gives the longest name.
                        self._names[id(each)] = max(
                            name.replace(_COMPILED, ""), self._names.get(id(each), ""), key=len
                        )
            # Search once: an unnamed parameter stays unnamed at later updates.
            self._names.setdefault(id(parameter), "")
        return self._names[id(parameter)]


_SEED = 20_240_607


@contextmanager
def repeatable_random_numbers() -> Iterator[None]:
    """Seed unseeded generators alike inside; generators that the script seeds are unaffected.

    Global generators start from a fixed seed. So do functions that ask the system for a seed:
    ``torch.seed()``, ``random.seed()``, ``numpy.random.default_rng()``. On exit the global
    generators get their states back.
    """
    entropy = random.Random(_SEED)
    original = random.seed

    @functools.wraps(original)
    def seed_python(a: Any = None, version: int = 2) -> None:
        original(entropy.getrandbits(64) if a is None else a, version)

    def seed_torch() -> int:
        seed = entropy.getrandbits(63)
        torch.manual_seed(seed)
        return seed

    with Patches() as patches:
        patches.callback(torch.set_rng_state, torch.get_rng_state())
        patches.callback(random.setstate, random.getstate())
        patches.callback(np.random.set_state, np.random.get_state())
        torch.manual_seed(_SEED)
        random.seed(_SEED)
        np.random.seed(_SEED)
        patches.replace(random, "seed", seed_python)
        patches.replace(torch, "seed", seed_torch)
        patches.replace(torch.random, "seed", seed_torch)
        # NumPy draws all entropy for unseeded generators here.
        patches.replace(np.random.bit_generator, "randbits", entropy.getrandbits)
        yield


def random_state_digest() -> bytes:
    """Return a digest of the states of torch's, CUDA's, Python's and NumPy's global generators."""
    digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    if torch.cuda.is_initialized():
        for state in torch.cuda.get_rng_state_all():
            digest.update(state.numpy().tobytes())
    digest.update(repr(random.getstate()).encode())
    for part in np.random.get_state():
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.digest()


class WeightNoise(Patches):
    """Inside, moves weights when an optimizer receives them, and at each call of `move`.

    Each weight moves up or down by the same fraction of itself, without the script's generators.

    Args:
        roundoffs: The fraction, in roundoffs of the weight's own format; 0 for no move.
        seed: Seed of the signs; the same seed gives the same signs in every run.
    """

    def __init__(self, roundoffs: float, seed: int = 0) -> None:
        super().__init__()
        self._roundoffs = roundoffs
        self._signs = torch.Generator().manual_seed(seed)

    def _apply(self) -> None:
        if self._roundoffs:
            self.call_after_making(torch.optim.Optimizer, lambda made: self.move(updated_by(made)))

    def move(self, parameters: Iterable[torch.Tensor]) -> None:
        """Move these weights, each by its next random sign."""
        if self._roundoffs:
            move_weights(parameters, self._roundoffs, self._signs)

"""Let a script that seeds nothing draw the same random numbers in every run."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from breakeven.configure import Patches, updated_by

_SEED = 20_240_607


@contextmanager
def repeatable_random_numbers() -> Iterator[None]:
    """Inside, what is not seeded is seeded alike, and what the script seeds stays as it is.

    Global generators begin from a fixed seed, and so does what asks the system for one:
    ``torch.seed()``, ``random.seed()``, ``numpy.random.default_rng()``. Leaving it gives the
    global generators their states back.
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
        # Whatever NumPy makes without a seed gets its entropy here.
        patches.replace(np.random.bit_generator, "randbits", entropy.getrandbits)
        yield


def random_state_digest() -> bytes:
    """Return a digest of the global generators' states: of torch, CUDA, Python and NumPy."""
    digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    if torch.cuda.is_initialized():
        for state in torch.cuda.get_rng_state_all():
            digest.update(state.numpy().tobytes())
    digest.update(repr(random.getstate()).encode())
    digest.update(repr([_plain(part) for part in np.random.get_state()]).encode())
    return digest.digest()


def _plain(part: Any) -> Any:
    return part.tobytes() if isinstance(part, np.ndarray) else part


# Of a format of 16 bits, more roundoffs than this are a change that nobody calls rounding.
_MOST = 2.0**-8


class WeightNoise(Patches):
    """Inside, weights are moved when an optimizer is given them, and whenever `move` is called.

    Each weight goes up or down by the same fraction of itself. No generator of the script is used.

    Args:
        roundoffs: The fraction, in roundoffs of the weight's own format; 0 to move none.
        seed: Of the signs, which are the same in every run with it.
    """

    def __init__(self, roundoffs: float, seed: int = 0) -> None:
        super().__init__()
        self._roundoffs = roundoffs
        self._signs = torch.Generator().manual_seed(seed)

    def __enter__(self) -> WeightNoise:
        super().__enter__()
        if self._roundoffs:
            original = torch.optim.Optimizer.__init__

            @functools.wraps(original)
            def initialize(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
                original(optimizer, *args, **kwargs)
                self.move(updated_by(optimizer))

            self.replace(torch.optim.Optimizer, "__init__", initialize)
        return self

    def move(self, parameters: Iterable[torch.Tensor]) -> None:
        """Move these weights."""
        if not self._roundoffs:
            return
        for parameter in parameters:
            if parameter.is_floating_point() and not is_lazy(parameter):
                # Half of eps, the distance from 1 to the next number.
                fraction = min(self._roundoffs * torch.finfo(parameter.dtype).eps / 2, _MOST)
                signs = torch.randint(0, 2, parameter.shape, generator=self._signs) * 2 - 1
                factors = 1 + fraction * signs.to(torch.float64)
                moved = parameter.data * factors.to(parameter.device)
                parameter.data.copy_(moved)

"""Leave no trace of a measurement in the process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


@contextmanager
def untouched() -> Iterator[None]:
    """Give back the random numbers, the threads and the hooks of optimizers as they were.

    Inside, gradients are recorded whatever the caller does, and steps of optimizers call none of
    the hooks that were registered for all optimizers: they count the user's steps.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state, num_threads = torch.get_rng_state(), torch.get_num_threads()
    all_hooks: list[dict[int, Any]] = [_global_optimizer_pre_hooks, _global_optimizer_post_hooks]
    kept: list[dict[int, Any]] = [dict(hooks) for hooks in all_hooks]
    for hooks in all_hooks:
        hooks.clear()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for hooks, before in zip(all_hooks, kept, strict=True):
            hooks.clear()
            hooks.update(before)
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)

"""Run something of our own within a recorded script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def without_modes() -> Iterator[None]:
    """Run at full speed inside: nothing is recorded."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield

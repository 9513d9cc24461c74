"""Run something of our own within a recorded script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch._subclasses.schema_check_mode  # what follows needs it, when a script may hide it
from torch.utils._python_dispatch import _disable_current_modes

# Those of modes of dispatch.
_MODE_KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded


@contextmanager
def without_modes() -> Iterator[None]:
    """Run at full speed inside: nothing is recorded."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class undispatched:  # noqa: N801 - a context manager reads as a verb
    """Inside, operators pass modes by. Quicker than taking them off, and for few operators."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _is_excluded(_MODE_KEYS[0])
        for key in _MODE_KEYS:
            _exclude(key, True)

    def __exit__(self, *_: object) -> None:
        for key in _MODE_KEYS:
            _exclude(key, self._before)


@contextmanager
def same_numbers() -> Iterator[None]:
    """Draw random numbers inside that the script draws again afterwards."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)

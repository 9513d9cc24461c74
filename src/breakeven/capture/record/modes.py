"""Modes of torch that observe operators in every thread, only while needed.

A mode makes each operator several times slower. Before a tensor is on a device, nothing needs
recording. So the script runs at its own speed until it names a device.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch._subclasses.schema_check_mode  # needed later, when a script may hide it
import torch.overrides
import torch.utils._python_dispatch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from breakeven.configure import Patches


class _Here(threading.local):
    """Whether the modes are on the current thread's stacks."""

    is_pushed = False


class Watch(Patches):
    """Puts modes on the stacks of this process's threads when needed.

    Other threads get them at their start, since a mode cannot be pushed for them later.

    Args:
        recorder: Receives the operators.
        calls: Receives the calls of torch's functions.
    """

    def __init__(self, recorder: TorchDispatchMode, calls: TorchFunctionMode) -> None:
        super().__init__()
        self._recorder = recorder
        self._calls = calls
        self._here = _Here()
        # Before and after the watch, other threads may have the modes, which then do nothing.
        self.is_on = False

    def _apply(self) -> None:
        original = threading.Thread._bootstrap_inner  # pyright: ignore[reportAttributeAccessIssue]

        @functools.wraps(original)
        def bootstrap(thread: threading.Thread) -> None:
            if _is_of_loader(thread):
                original(thread)
                return
            self._push()
            try:
                original(thread)
            finally:
                self._pop()

        self.replace(threading.Thread, "_bootstrap_inner", bootstrap)
        self.callback(self.stop)

    def start(self) -> None:
        """Start to watch, in this thread too."""
        self.is_on = True
        if not self._here.is_pushed:
            self._push()

    def stop(self) -> None:
        """Stop watching."""
        self.is_on = False
        if self._here.is_pushed:
            self._pop()

    def _push(self) -> None:
        """Put the modes below the script's modes, which the script itself removes."""
        self._here.is_pushed = True
        operators = _take_all_dispatch_modes()
        torch.utils._python_dispatch._push_mode(self._recorder)
        for mode in reversed(operators):
            torch.utils._python_dispatch._push_mode(mode)
        functions = _take_all_function_modes()
        # A device context removes itself from the very bottom.
        if functions and isinstance(functions[-1], DeviceContext):
            torch.overrides._push_mode(functions.pop())
        for mode in (self._calls, *reversed(functions)):
            torch.overrides._push_mode(mode)

    def _pop(self) -> None:
        """Remove the modes from any position in the stacks."""
        # While the mode handles an operator, torch itself has removed it, and restores it later.
        self._here.is_pushed = not take_off(self._recorder)
        for mode in reversed(_take_all_function_modes()):
            if mode is not self._calls:
                torch.overrides._push_mode(mode)


def _is_of_loader(thread: threading.Thread) -> bool:
    """Return whether a thread belongs to a DataLoader, which pins batches during training."""
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", "")).startswith("torch.utils.data.")


def take_off(mode: TorchDispatchMode) -> bool:
    """Remove a mode from any position in this thread's stack; return whether it was there."""
    modes = _take_all_dispatch_modes()
    for one in reversed(modes):
        if one is not mode:
            torch.utils._python_dispatch._push_mode(one)
    return mode in modes


def _take_all_dispatch_modes() -> list[TorchDispatchMode]:
    """Empty this thread's stack; the last item of the result was at the bottom."""
    size = torch._C._len_torch_dispatch_stack()
    return [torch.utils._python_dispatch._pop_mode() for _ in range(size)]  # type: ignore[misc]


def _take_all_function_modes() -> list[TorchFunctionMode]:
    size = torch._C._len_torch_function_stack()
    return [torch.overrides._pop_mode() for _ in range(size)]


# Dispatch keys of dispatch modes.
_MODE_KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded


@contextmanager
def without_modes() -> Iterator[None]:
    """Run at full speed inside, without a recording."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class undispatched:  # noqa: N801 - a context manager reads as a verb
    """Lets operators bypass modes inside: quicker than removing the modes, for few operators."""

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
    """Draw random numbers inside that the script draws again later."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)

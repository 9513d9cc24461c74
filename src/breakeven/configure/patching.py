"""What of torch and of this process is changed for a while: attributes, threads, hooks, memory."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

_ABSENT = object()
# Parameters of mallopt. Source: glibc, malloc/malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = -1


class Patches(ExitStack):
    """A stack of replaced attributes; leaving it restores all of them in reverse order."""

    def __init__(self) -> None:
        super().__init__()
        self._originals: dict[int, Any] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        self._apply()
        return self

    def _apply(self) -> None:
        """Replace what a subclass is for; called when it is entered."""

    def original_of(self, value: Any) -> Any:
        """Return what ``value`` stands in for; ``value`` itself when it replaces nothing."""
        return self._originals.get(id(value), value)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` until the stack is left.

        An attribute that ``owner`` merely inherits is shadowed, and uncovered again afterwards.
        """
        original = vars(owner).get(name, _ABSENT)
        self._originals[id(value)] = getattr(owner, name, None)
        setattr(owner, name, value)
        self.callback(_restore, owner, name, original)

    def call_after_making(self, kind: type, callback: Callable[[Any], object]) -> None:
        """Call back with each object of a class, or of one below it, that has been made."""
        original: Any = kind.__init__

        @functools.wraps(original)
        def initialize(made: Any, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            callback(made)

        self.replace(kind, "__init__", initialize)


def _restore(owner: Any, name: str, original: Any) -> None:
    if original is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, original)


def keep_freed_memory() -> bool:
    """Let freed memory be used again instead of being returned to the operating system.

    Returning the memory of large tensors, and getting new pages, can take longer than the step on a
    GPU, whose allocator keeps what it has. In a recording it looks like work of the script between
    two operators. It cannot be undone, so it is for a process that ends with its run; where
    the C library is another than glibc, nothing changes.

    Returns:
        Whether anything changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)
    return True


def set_num_threads(count: int) -> None:
    """Set torch's intra-op threads, where that changes anything; 0 to leave them."""
    if count and torch.get_num_threads() != count:
        torch.set_num_threads(count)


@contextmanager
def unwatched_steps() -> Iterator[None]:
    """Inside, steps of optimizers call none of the hooks that were registered for all of them.

    Those count the user's steps, not such as are done to be timed.
    """
    all_hooks: list[dict[int, Any]] = [_global_optimizer_pre_hooks, _global_optimizer_post_hooks]
    kept = [dict(hooks) for hooks in all_hooks]
    for hooks in all_hooks:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in zip(all_hooks, kept, strict=True):
            hooks.clear()
            hooks.update(before)

"""What the processor does for torch as a whole: threads, and numbers close to zero."""

from __future__ import annotations

import functools
from typing import Any

import torch

from breakeven.configure.patching import Patches
from breakeven.errors import BreakevenError

# Below the smallest normal number of float64.
_SUBNORMAL = 1e-310


class intra_op_threads(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, operators run on so many threads, unless the script asks for others.

    Args:
        num_threads: At least 1.
    """

    def __init__(self, num_threads: int) -> None:
        super().__init__()
        self._num_threads = num_threads

    @property
    def num_applied(self) -> int:
        """Return 1 as long as nobody has asked for another number."""
        return int(torch.get_num_threads() == self._num_threads)

    def __enter__(self) -> intra_op_threads:
        super().__enter__()
        self.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(self._num_threads)
        return self


class inter_op_threads(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, independent operators run on so many threads, unless the script asks for others.

    torch takes this number only once in a process. So it is set as late as possible, when the
    script makes its first optimizer, to leave the choice to a script that makes it; and it stays
    set when the context is left.

    Args:
        num_threads: At least 1.
    """

    def __init__(self, num_threads: int) -> None:
        super().__init__()
        self._num_threads = num_threads
        self._is_decided = False

    @property
    def num_applied(self) -> int:
        """Return 1 where this is the number in use."""
        return int(self._is_decided and torch.get_num_interop_threads() == self._num_threads)

    def __enter__(self) -> inter_op_threads:
        super().__enter__()
        original = torch.set_num_interop_threads
        original_init = torch.optim.Optimizer.__init__

        @functools.wraps(original)
        def set_by_script(num_threads: int) -> None:
            self._is_decided = True
            original(num_threads)

        @functools.wraps(original_init)
        def initialize(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            if not self._is_decided:
                self._is_decided = True
                self._set(original)
            original_init(optimizer, *args, **kwargs)

        self.replace(torch, "set_num_interop_threads", set_by_script)
        self.replace(torch.optim.Optimizer, "__init__", initialize)
        return self

    def _set(self, setter: Any) -> None:
        if torch.get_num_interop_threads() == self._num_threads:
            return
        try:
            setter(self._num_threads)
        except RuntimeError as error:
            raise BreakevenError(
                f"torch's inter-op threads cannot be set to {self._num_threads}: parallel work "
                "has begun in this process, or they were set before",
                hint="leave num_interop_threads out of the configuration",
            ) from error


class flushed_denormals(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, the processor treats subnormal numbers as zero, where it can.

    Threads take the setting over from the one that starts them.
    """

    @property
    def num_applied(self) -> int:
        """Return 1 where this thread's processor does it."""
        return int(is_flushing_denormals())

    def __enter__(self) -> flushed_denormals:
        super().__enter__()
        self.callback(torch.set_flush_denormal, is_flushing_denormals())
        torch.set_flush_denormal(True)
        return self


def is_flushing_denormals() -> bool:
    """Return whether subnormal numbers count as zero in this thread; torch does not say it."""
    return _SUBNORMAL * torch.ones((), dtype=torch.float64).item() == 0.0

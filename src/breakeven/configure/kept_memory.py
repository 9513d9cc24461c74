"""Memory that a process keeps when it is freed, as a GPU's allocator does."""

from __future__ import annotations

import ctypes
import sys

# Parameters of mallopt. Source: glibc, malloc/malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = -1


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

"""One measurement at a time on a machine."""

from __future__ import annotations

import getpass
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

# How soon a process that waits sees that it is its turn.
_POLL_S = 0.1


@contextmanager
def machine_lock(on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the machine inside: no other breakeven process of this user measures meanwhile.

    The lock belongs to the process and ends with it, however it ends.

    Args:
        on_wait: Called once where another process holds it, before the wait for it.
    """
    lock = FileLock(_lock_file(), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        lock.acquire(poll_interval=_POLL_S)
    try:
        yield
    finally:
        lock.release()


def _lock_file() -> Path:
    """Return the file, whose name holds that of the machine: a home folder may be shared."""
    name = re.sub(r"[^\w.-]", "_", platform.node())
    folder = Path(platformdirs.user_cache_dir("breakeven"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError:
        is_writable = False
    if is_writable:
        return folder / f"measuring-{name}.lock"
    user = os.getuid() if hasattr(os, "getuid") else getpass.getuser()  # Windows has no numbers
    return Path(tempfile.gettempdir()) / f"breakeven-{user}-{name}.lock"

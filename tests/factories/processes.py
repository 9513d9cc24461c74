"""Waits for processes of other programs to start and to end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def is_running(pid: int) -> bool:
    """Return whether a process runs; on Linux a zombie does not."""
    if Path("/proc/self/stat").exists():
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(is_so: Callable[[], object], limit_s: float = 120.0) -> None:
    """Wait until a condition holds; fail after ``limit_s``."""
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"not so within {limit_s} s"
        time.sleep(0.05)

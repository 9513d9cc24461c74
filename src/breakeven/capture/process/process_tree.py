"""A process that ends together with all that it starts."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from contextlib import suppress
from typing import Any

# With these Ctrl-C at the terminal reaches us alone, and we end the rest.
OF_ITS_OWN: dict[str, Any] = {
    "start_new_session": True,
    "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
}
# Source: winnt.h.
_EXTENDED_LIMITS = 9
_KILL_ON_JOB_CLOSE = 0x2000


def end_tree(process: subprocess.Popen[Any]) -> None:
    """End a process now, and with it the group that it leads.

    Windows has no such groups: see `end_all_with_this_process`.

    Args:
        process: Was started as one `OF_ITS_OWN`.
    """
    if not hasattr(os, "killpg"):
        process.kill()
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_all_with_this_process() -> None:
    """Let Windows end all that this process starts when it ends; elsewhere nothing changes.

    They are in a job, which is closed when the last one who has it open ends: that is this process.
    """
    windows: Any = ctypes
    if not hasattr(windows, "WinDLL"):
        return
    kernel = windows.WinDLL("kernel32")
    for function in (kernel.CreateJobObjectW, kernel.GetCurrentProcess):
        function.restype = ctypes.c_void_p  # by default, handles would be cut to 32 bits
    job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))
    limits = _Limits(flags=_KILL_ON_JOB_CLOSE)
    kernel.SetInformationJobObject(
        job, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
    )
    kernel.AssignProcessToJobObject(job, ctypes.c_void_p(kernel.GetCurrentProcess()))


class _Limits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION of Windows. Source: winnt.h."""

    _fields_ = (
        ("times", ctypes.c_int64 * 2), ("flags", ctypes.c_uint32),
        ("working_set", ctypes.c_size_t * 2), ("num_processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t), ("classes", ctypes.c_uint32 * 2),
        ("transfers", ctypes.c_uint64 * 6), ("memory", ctypes.c_size_t * 4),
    )  # fmt: skip

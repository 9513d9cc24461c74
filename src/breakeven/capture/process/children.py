"""Starts our own processes, and ends all processes of a run, even detached ones.

Import little here: a script started by ``breakeven run`` waits for this module.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import get_native_id
from time import monotonic, sleep
from typing import Any

# Marks the processes of a run for processes that are not their ancestors.
RUN_VARIABLE = "BREAKEVEN_RUN"

_PROC = Path("/proc")
# Source: <linux/prctl.h>.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Programs that remove shared memory and semaphores left by other processes, and then end.
_TIDYING = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
_TIDYING_LIMIT_S = 1.0
# A process stuck in the kernel, or of another user, cannot be ended: stop after this time.
_LIMIT_S = 3.0
_POLL_S = 0.002
# A process that executes another program may lack an environment for this time.
_STARTING_S = 0.02


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules.

    A file in the current folder cannot shadow a module of Python or torch.
    """
    return [sys.executable, "-P", "-m", f"breakeven.capture.{module}", *arguments]


def adopt_orphans() -> bool:
    """Become the parent of every orphaned descendant, until this process ends.

    Returns:
        Whether this system supports it and lists the children of each process.
    """
    if sys.platform != "linux" or not Path(f"/proc/self/task/{get_native_id()}/children").exists():
        return False
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """End this process when its parent ends.

    Args:
        parent: Process id of the parent, which may have ended already.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end_descendants() -> None:
    """End all descendants of this process, which adopts orphans and has no other children."""
    own = os.getpid()

    def find() -> list[int] | None:
        try:  # take note of children that have ended
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # no children are left: a killed process leaves its own to us
            return None
        return _descendants(own)

    _end_all(find)


def end_run(mark: str) -> None:
    """End the processes of a run that no process adopted.

    Args:
        mark: Value of their `RUN_VARIABLE`.
    """
    entry = f"{RUN_VARIABLE}={mark}".encode()
    _end_all(lambda: _marked(entry) or None)
    sleep(_STARTING_S)
    _end_all(lambda: _marked(entry) or None)


def _end_all(find: Callable[[], list[int] | None]) -> None:
    """Kill the processes that ``find`` returns until it finds none, tidying programs last."""
    begun_s = monotonic()
    while (found := find()) is not None:
        waited_s = monotonic() - begun_s
        if waited_s > _LIMIT_S:
            return
        others: list[int] = []
        for process in found:
            with suppress(OSError):  # the process has ended
                command = (_PROC / str(process) / "cmdline").read_bytes()
                if not any(name in command for name in _TIDYING):
                    others.append(process)
        for process in others or (found if waited_s > _TIDYING_LIMIT_S else ()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        sleep(_POLL_S)


def _descendants(process: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # the process has ended
        for thread in (_PROC / str(process) / "task").iterdir():
            for child in map(int, (thread / "children").read_bytes().split()):
                found += [child, *_descendants(child)]
    return found


def _marked(entry: bytes) -> list[int]:
    found: list[int] = []
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _prctl(option: int, value: int) -> bool:
    return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0


# With these options, only our process receives Ctrl-C at the terminal, and we end the others.
OF_ITS_OWN: dict[str, Any] = {
    "start_new_session": True,
    "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
}
# Source: winnt.h.
_EXTENDED_LIMITS = 9
_KILL_ON_JOB_CLOSE = 0x2000


def end_tree(process: subprocess.Popen[Any]) -> None:
    """End a process and the process group that it leads at once.

    Windows has no process groups: see `end_all_with_this_process`.

    Args:
        process: A process started with `OF_ITS_OWN`.
    """
    if not hasattr(os, "killpg"):
        process.kill()
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_all_with_this_process() -> None:
    """Make Windows end this process's descendants with it; other systems ignore the call.

    A job contains them. It closes with its last handle, which only this process holds.
    """
    windows: Any = ctypes
    if not hasattr(windows, "WinDLL"):
        return
    kernel = windows.WinDLL("kernel32")
    for function in (kernel.CreateJobObjectW, kernel.GetCurrentProcess):
        function.restype = ctypes.c_void_p  # the default would truncate handles to 32 bits
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

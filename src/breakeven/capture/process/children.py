"""Start processes of our own, and end those of a run, however far they have gone.

Imports little: a script that ``breakeven run`` starts waits for it.
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

# Marks the processes of a run for those that are not their ancestors.
RUN_VARIABLE = "BREAKEVEN_RUN"

_PROC = Path("/proc")
# Source: <linux/prctl.h>.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Programs that remove what others leave in shared memory, semaphores too, and end when these have.
_TIDYING = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
_TIDYING_LIMIT_S = 1.0
# What the kernel does not let go, or another user owns, cannot be ended.
_LIMIT_S = 3.0
_POLL_S = 0.002
# A process that becomes another program may have no environment to be known by for this time.
_STARTING_S = 0.02


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules.

    No file in the current folder takes the place of a module of Python's or torch's.
    """
    return [sys.executable, "-P", "-m", f"breakeven.capture.{module}", *arguments]


def adopt_orphans() -> bool:
    """Become the parent of every descendant that loses its own, until this process ends.

    Returns:
        Whether this system lets it, and tells who descends from whom.
    """
    if sys.platform != "linux" or not Path(f"/proc/self/task/{get_native_id()}/children").exists():
        return False
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """Let this process end when its parent does.

    Args:
        parent: The one that has started it, and may be gone already.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end_descendants() -> None:
    """End all that descends from this process, which adopts orphans, and has no other children."""
    own = os.getpid()

    def find() -> list[int] | None:
        try:  # take note of children that have ended
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # who is killed leaves children to this process: it has none
            return None
        return _descendants(own)

    _end_all(find)


def end_run(mark: str) -> None:
    """End the processes of a run that nobody has adopted.

    Args:
        mark: What `RUN_VARIABLE` is for them.
    """
    entry = f"{RUN_VARIABLE}={mark}".encode()
    _end_all(lambda: _marked(entry) or None)
    sleep(_STARTING_S)
    _end_all(lambda: _marked(entry) or None)


def _end_all(find: Callable[[], list[int] | None]) -> None:
    """Kill what is found until nothing is, those last that tidy up after the others."""
    begun_s = monotonic()
    while (found := find()) is not None:
        waited_s = monotonic() - begun_s
        if waited_s > _LIMIT_S:
            return
        others: list[int] = []
        for process in found:
            with suppress(OSError):  # it has ended meanwhile
                command = (_PROC / str(process) / "cmdline").read_bytes()
                if not any(name in command for name in _TIDYING):
                    others.append(process)
        for process in others or (found if waited_s > _TIDYING_LIMIT_S else ()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        sleep(_POLL_S)


def _descendants(process: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it has ended meanwhile
        for thread in (_PROC / str(process) / "task").iterdir():
            for child in map(int, (thread / "children").read_bytes().split()):
                found += [child, *_descendants(child)]
    return found


def _marked(entry: bytes) -> list[int]:
    found: list[int] = []
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # of another user, or ended meanwhile
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _prctl(option: int, value: int) -> bool:
    return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0


# With these, Ctrl-C at the terminal reaches us alone, and we end the rest.
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

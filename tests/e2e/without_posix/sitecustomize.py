"""Hides from breakeven what Windows lacks: Python imports this first where its folder is in
PYTHONPATH.

Everybody else's code is that of Linux, and has what it needs. In place of what is hidden there is a
made-up kernel32, with 8 GiB of memory.
"""

import builtins
import ctypes
import io
import os
import select
import signal
import sys

MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
OF_OS = """
    chown confstr fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg getpgid
    getpgrp getpriority getsid getuid killpg lchown login_tty mkfifo mknod nice openpty pipe2
    posix_fadvise posix_spawn posix_spawnp pread preadv pwrite pwritev register_at_fork
    sched_get_priority_max sched_getaffinity sched_getparam sched_getscheduler sched_setaffinity
    sched_yield sendfile set_blocking setegid seteuid setgid setgroups setpgid setpriority setsid
    setuid statvfs sync sysconf sysconf_names uname wait wait3 wait4 waitid waitpid
    O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK PRIO_PROCESS SCHED_BATCH SCHED_IDLE
    WCOREDUMP WEXITSTATUS WIFEXITED WIFSIGNALED WIFSTOPPED WNOHANG WSTOPSIG WTERMSIG
"""
OF_SIGNAL = """
    SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2
    alarm getitimer pause pthread_kill pthread_sigmask setitimer sigpending sigwait
"""
FOLDERS = ("/proc", "/sys")
OURS = f"{os.sep}breakeven{os.sep}"


def is_ours():
    """Return whether breakeven's own code, and no library, called who asks."""
    return OURS in sys._getframe(2).f_code.co_filename


def hide_names(module, names):
    hidden = {name: vars(module).pop(name) for name in names.split() if hasattr(module, name)}

    def find(name):
        if name in hidden and not is_ours():
            return hidden[name]
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name)

    module.__getattr__ = find


def hide_folders(function):
    def call(path=".", *args, **kwargs):
        if not isinstance(path, int) and os.fspath(path).startswith(FOLDERS):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *args, **kwargs)

    return call


def import_others(name, *args, _original=builtins.__import__, **kwargs):
    if name in MODULES and is_ours():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return _original(name, *args, **kwargs)


def select_sockets(*args, _original=select.select):
    if is_ours():
        raise OSError(10038, "An operation was attempted on something that is not a socket")
    return _original(*args)


class Function:
    """A function with attributes, as those of ctypes have."""

    def __init__(self, result):
        self.result = result

    def __call__(self, *_):
        return self.result


class Kernel32:
    """What is asked of it is answered for a machine of 8 GiB, of which 4 are free."""

    def __init__(self, name):
        assert name == "kernel32"
        self.CreateJobObjectW = Function(1)
        self.GetCurrentProcess = Function(2**64 - 1)
        self.SetInformationJobObject = self.AssignProcessToJobObject = Function(1)

    def GlobalMemoryStatusEx(self, status):  # noqa: N802
        status._obj.total_bytes, status._obj.available_bytes = 8 << 30, 4 << 30
        return 1

    def K32GetProcessMemoryInfo(self, process, counters, size):  # noqa: N802
        assert size == ctypes.sizeof(counters._obj)
        counters._obj.peak_bytes = 1 << 30
        return 1


def find_in_ctypes(name):
    if name == "WinDLL" and is_ours():
        return Kernel32
    raise AttributeError(f"module 'ctypes' has no attribute {name!r}", name=name)


hide_names(os, OF_OS)
hide_names(signal, OF_SIGNAL)
builtins.__import__ = import_others
select.select = select_sockets
builtins.open = io.open = hide_folders(io.open)
for name in ("listdir", "open", "scandir", "stat"):
    setattr(os, name, hide_folders(getattr(os, name)))
ctypes.__getattr__ = find_in_ctypes

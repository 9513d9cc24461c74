"""This machine: the name and versions that identify a measurement, and the machine's lock."""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from breakeven.processor import cpu_name, num_cores
from breakeven.verdict import Machine

# Interval in seconds at which a waiting process tries the lock again.
_POLL_S = 0.1


def this_machine(*, gpu: str) -> Machine:
    """Return this machine, without importing torch.

    Args:
        gpu: Name of the CUDA device that runs the step; empty if the CPU runs it.
    """
    return Machine(
        processor=cpu_name(),
        num_cores=num_cores(),
        gpu=gpu,
        torch_version=installed_version("torch"),
        python_version=platform.python_version(),
        breakeven_version=installed_version("breakeven"),
    )


class MachineKey(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and its software, on which a measurement depends besides its configuration.

    Args:
        hostname: Name of the machine.
        processor: Name of its CPU.
        num_processors: Logical processors that this process may use.
        python_version: Python that runs the script.
        torch_version: torch that runs it.
        breakeven_version: breakeven that measures it.
    """

    hostname: str
    processor: str
    num_processors: int
    python_version: str
    torch_version: str
    breakeven_version: str


def machine_key(*, processor: str, torch_version: str) -> MachineKey:
    """Return the key of this machine.

    Args:
        processor: Name of its CPU.
        torch_version: torch that runs scripts here.
    """
    return MachineKey(
        hostname=platform.node(),
        processor=processor,
        num_processors=num_cores(),
        python_version=platform.python_version(),
        torch_version=torch_version,
        breakeven_version=installed_version("breakeven"),
    )


def installed_version(package: str) -> str:
    """Return a package's version; empty if not installed, but ``from source`` for breakeven."""
    try:
        return version(package)
    except PackageNotFoundError:  # breakeven runs from a folder without an installation
        return "from source" if package == "breakeven" else ""


@cache
def code_digest(*packages: str) -> str:
    """Return the digest of all code in these packages of breakeven, such as ``capture``.

    A cached result of this code is invalid for code with another digest.
    """
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for package in packages:
        assert (root / package).is_dir(), package
        for file in sorted((root / package).rglob("*.py")):
            digest.update(file.relative_to(root).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


@contextmanager
def machine_lock(on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the machine: no other breakeven process of this user measures inside this context.

    The lock belongs to the process and ends with it, however it ends.

    Args:
        on_wait: Called once before waiting, if another process holds the lock.
    """
    # Import here: a run under known settings measures nothing and needs no lock.
    from filelock import FileLock, Timeout

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
    """Return the lock file; its name contains the machine's, since a home folder may be shared."""
    import platformdirs  # slow, and needed only by runs that measure

    name = re.sub(r"[^\w.-]", "_", platform.node())
    folder = Path(platformdirs.user_cache_dir("breakeven"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError:
        is_writable = False
    if is_writable:
        return folder / f"measuring-{name}.lock"
    user = os.getuid() if hasattr(os, "getuid") else getpass.getuser()  # no user ids on Windows
    return Path(tempfile.gettempdir()) / f"breakeven-{user}-{name}.lock"

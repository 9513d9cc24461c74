"""The machine and the versions that a configuration is found on, and known to be right for."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from breakeven.verdict import Machine


def this_machine(*, gpu: str) -> Machine:
    """Return this machine, without importing torch.

    Args:
        gpu: Name of the CUDA device that runs the step; empty where the CPU does.
    """
    return Machine(
        processor=processor_name(),
        num_cores=_num_cores(),
        gpu=gpu,
        torch_version=_version("torch"),
        python_version=platform.python_version(),
        breakeven_version=_version("breakeven"),
    )


def processor_name() -> str:
    """Return the processor's name, as the operating system gives it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a folder that was never installed
        return ""

"""The machine and the versions that a configuration is found on, and known to be right for."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from breakeven.processor import cpu_name, num_cores
from breakeven.verdict import Machine


def this_machine(*, gpu: str) -> Machine:
    """Return this machine, without importing torch.

    Args:
        gpu: Name of the CUDA device that runs the step; empty where the CPU does.
    """
    return Machine(
        processor=cpu_name(),
        num_cores=num_cores(),
        gpu=gpu,
        torch_version=_version("torch"),
        python_version=platform.python_version(),
        breakeven_version=_version("breakeven"),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a folder that was never installed
        return ""

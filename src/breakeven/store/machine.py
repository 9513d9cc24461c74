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
        torch_version=installed_version("torch"),
        python_version=platform.python_version(),
        breakeven_version=installed_version("breakeven"),
    )


def installed_version(package: str) -> str:
    """Return the version of an installed package; empty for one that is not."""
    try:
        return version(package)
    except PackageNotFoundError:  # run from a folder that was never installed
        return ""

"""The machine and the versions that a configuration is found on, and known to be right for."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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


@cache
def code_digest(*packages: str) -> str:
    """Return the digest of all code of some of breakeven's packages: ``capture``, ``trace``.

    What such code has measured or recorded, and was kept, is not that of other code.
    """
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for package in packages:
        assert (root / package).is_dir(), package
        for file in sorted((root / package).rglob("*.py")):
            digest.update(file.relative_to(root).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]

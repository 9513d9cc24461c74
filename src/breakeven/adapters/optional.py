"""Packages that only some users have."""

from __future__ import annotations

import importlib
from types import ModuleType

from breakeven.errors import BreakevenError


def import_optional(name: str, *, packages: str) -> ModuleType:
    """Import a package that is no dependency of breakeven.

    Args:
        name: Of the module.
        packages: What to install, as pip takes it.

    Raises:
        BreakevenError: It is not installed, or does not load.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BreakevenError(
            f"{name} cannot be imported ({error})", hint=f"pip install {packages}"
        ) from error

"""Lazy imports: a package's names that take long to import are loaded on first use."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def exported_on_use(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports its names under ``TYPE_CHECKING``.

    No name may equal that of a module of the package: the module would replace it.

    Args:
        package: Name of the package.
    """
    homes: dict[str, str] = {}

    def load(name: str) -> Any:
        if not homes:
            homes.update(exports(package))
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


def exports(package: str) -> dict[str, str]:
    """Return the names that a package imports under ``TYPE_CHECKING``, with their modules."""
    source: str = sys.modules[package].__loader__.get_source(package)  # pyright: ignore
    blocks = [block.body for block in ast.parse(source).body if isinstance(block, ast.If)]
    lines = [line for block in blocks for line in block if isinstance(line, ast.ImportFrom)]
    return {alias.name: line.module or "" for line in lines for alias in line.names}

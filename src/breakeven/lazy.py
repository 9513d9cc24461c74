"""Names of a package that are imported on first use, where importing them takes long."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def imported_on_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: Its name.
        homes: The module below it that has each name.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return load


def exported_on_use(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports its names for type checkers alone.

    No name may be that of a module of the package, which would take its place.

    Args:
        package: Its name; its imports stand under ``if TYPE_CHECKING:``.
    """
    homes: dict[str, str] = {}

    def load(name: str) -> Any:
        homes.update({} if homes else _exports(package))
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


def _exports(package: str) -> Iterator[tuple[str, str]]:
    """Yield the names that the package's own source imports for type checkers, and from where."""
    source = sys.modules[package].__loader__.get_source(package)  # pyright: ignore
    for block in ast.parse(source).body:
        if isinstance(block, ast.If):
            for line in block.body:
                if isinstance(line, ast.ImportFrom) and line.module:
                    yield from ((alias.name, line.module) for alias in line.names)

"""Modules that breakeven has imported, whose names are those of modules of the script's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from types import ModuleType

# Python has these before it looks into any folder, whatever lies beside a script.
_LOADED_AT_START = (BuiltinImporter, FrozenImporter)

# The folder that comes first for the script, and the modules whose names it has.
_folder = ""
_aside: dict[str, ModuleType] = {}


def set_aside_for(folder: str) -> None:
    """Forget the imported modules whose names ``folder`` has, so that its own are imported.

    Under plain Python a script's own ``statistics.py`` takes the place of Python's. Whoever has
    imported that already keeps it.

    Args:
        folder: Where modules are looked for first.
    """
    global _folder
    _folder = folder
    _aside.update(_take_out(_folder))


@contextmanager
def put_back() -> Iterator[None]:
    """Let breakeven import inside what it needs, and nothing of the script's own by that name."""
    path, of_script = sys.path[:], _take_out(_folder, also_its_own=True)
    sys.modules.update(_aside)
    sys.path[:] = [entry for entry in path if entry != _folder]
    try:
        yield
    finally:
        sys.path[:] = path
        _aside.update(_take_out(_folder))
        sys.modules.update(of_script)


def _take_out(folder: str, *, also_its_own: bool = False) -> dict[str, ModuleType]:
    """Remove the modules that have the names of a folder's from those that are imported."""
    if not folder:
        return {}
    try:
        stems = {file.name.partition(".")[0] for file in Path(folder).iterdir()}
    except OSError:  # it may be searched, but not listed
        return {}
    names = {
        stem
        for stem in stems & sys.modules.keys()
        if _stands_aside(sys.modules[stem], stem, folder, also_its_own=also_its_own)
    }
    return {
        name: sys.modules.pop(name)
        for name in tuple(sys.modules)
        if name.partition(".")[0] in names
    }


def _stands_aside(module: ModuleType, name: str, folder: str, *, also_its_own: bool) -> bool:
    is_at_start = getattr(getattr(module, "__spec__", None), "loader", None) in _LOADED_AT_START
    if name in ("__main__", "encodings") or is_at_start:
        return False
    spec = PathFinder.find_spec(name, [folder])
    if spec is None or spec.origin is None:  # a folder of data by chance
        return False
    file = getattr(module, "__file__", None)
    is_its_own = file is not None and os.path.realpath(file) == os.path.realpath(spec.origin)
    return also_its_own or not is_its_own

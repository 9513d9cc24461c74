"""Call back when a script imports a library, before the script goes on."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_Callback = Callable[[ModuleType], None]


def call_after_import(callbacks: Mapping[str, _Callback]) -> None:
    """Call each of ``callbacks`` once, when the module that it is for has been imported.

    Args:
        callbacks: By the full name of their module, none of which is imported yet; called with the
            module before who imports it goes on.
    """
    sys.meta_path.insert(0, _AfterImport(callbacks))


class _AfterImport(MetaPathFinder):
    """Finds modules as everybody else does, and has those that are waited for call back."""

    def __init__(self, callbacks: Mapping[str, _Callback]) -> None:
        self._callbacks = dict(callbacks)
        self._looked_for: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module that calls back; None for all other modules."""
        if fullname not in self._callbacks or fullname in self._looked_for:
            return None
        self._looked_for.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looked_for.remove(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute = loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            del loader.exec_module
            # Only now, since libraries look for it first without importing it.
            callback = self._callbacks.pop(fullname, None)
            if not self._callbacks and self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            if callback is not None:
                callback(module)

        loader.exec_module = execute_and_call
        return spec

"""The warnings of Python that a script causes, noted while they are shown as ever."""

from __future__ import annotations

import warnings
from typing import Any

from breakeven.configure import Patches

_MAX_WARNINGS = 5
_MAX_CHARACTERS = 300


class WarningWatch(Patches):
    """Notes the first few different warnings; what the script has silenced is not among them."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, None] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the warnings so far, each as its category and the first line of its message."""
        return tuple(self._texts)

    def __enter__(self) -> WarningWatch:
        super().__enter__()
        original = warnings.showwarning

        def show(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> None:
            if len(self._texts) < _MAX_WARNINGS:
                line = next(iter(str(message).splitlines()), "")
                self._texts[f"{category.__name__}: {line}"[:_MAX_CHARACTERS]] = None
            original(message, category, *args, **kwargs)

        self.replace(warnings, "showwarning", show)
        return self

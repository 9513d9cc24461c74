"""Modules under names that scripts still import them by."""

from __future__ import annotations

from pathlib import Path

from public_data._registry import kind


@kind
def alias(to: Path, *, module: str) -> None:
    """Let a module be imported under the name of the file ``to``, which is within ``$HOOKS``."""
    to.write_text(f"import sys\n\nimport {module}\n\nsys.modules[__name__] = {module}\n")

"""What kinds of faked data there are, by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Maker = Callable[..., None]

KINDS: dict[str, Maker] = {}


def kind(maker: Maker) -> Maker:
    """Let tables name a function that writes data to a path, by the function's name."""
    KINDS[maker.__name__] = maker
    return maker


def fake(entry: Mapping[str, Any], folder: Path, environment: Mapping[str, str]) -> None:
    """Write what an entry of a table describes.

    Args:
        entry: ``kind``, ``to`` and the arguments of the kind.
        folder: Where the script runs; ``to`` is relative to it.
        environment: What ``$NAME`` in ``to`` stands for.
    """
    arguments = dict(entry)
    maker = KINDS[arguments.pop("kind")]
    to = arguments.pop("to")
    for name, value in environment.items():
        to = to.replace(f"${name}", value)
    path = Path(os.path.normpath(folder / to))
    path.parent.mkdir(parents=True, exist_ok=True)
    maker(path, **arguments)

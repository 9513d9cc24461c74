"""Names that someone may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known names closest to ``name``, or with the first few."""
    names = sorted(known)
    folded = {other.lower(): other for other in reversed(names)}
    near = [folded[found] for found in difflib.get_close_matches(name.lower(), folded, n=4)]
    return f"there are {', '.join(near or names[:8])}" + ("" if near else ", ...")

"""Lines, each once."""

from __future__ import annotations

from collections.abc import Iterable

from breakeven.trace import Location


def distinct(locations: Iterable[Location | None]) -> list[Location | None]:
    """Return each line once, in the order of their first."""
    by_line = {(one.file, one.line) if one else None: one for one in reversed(list(locations))}
    return list(reversed(by_line.values()))

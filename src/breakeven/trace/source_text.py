"""A file of the user, as text."""

from __future__ import annotations

import msgspec


class SourceText(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the target ran or imported.

    Args:
        path: As the locations of a trace name it.
        text: Its content when the run ended.
    """

    path: str
    text: str

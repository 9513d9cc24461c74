"""Files of a run: those that it writes and what becomes of them, and those of the user as text."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class FileChange(StrEnum):
    """What a run does to a file."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"


class FileWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A file, or an empty folder, that a run wrote or deleted.

    Args:
        path: Its absolute path, fit to be shown.
        change: What was done to it.
        num_bytes: Its size afterwards; 0 where it was deleted.
    """

    path: str
    change: FileChange
    num_bytes: int = 0


class WriteProtection(StrEnum):
    """Where the writes of a run go."""

    # A layer over the file system, which sees whatever writes.
    OVERLAY = "overlay"
    # A folder to which Python's own functions are led.
    REDIRECTED = "redirected"
    # To the files themselves.
    NONE = "none"


class FileWrites(msgspec.Struct, frozen=True, kw_only=True):
    """What a run wrote.

    Args:
        protection: Where that went.
        files: The largest of the files; none where the files themselves were written.
        num_files: How many files there are.
        num_bytes: Their size in all.
    """

    protection: WriteProtection
    files: tuple[FileWrite, ...] = ()
    num_files: int = 0
    num_bytes: int = 0


class SourceText(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the target ran or imported.

    Args:
        path: As the locations of a trace name it.
        text: Its content when the run ended.
    """

    path: str
    text: str

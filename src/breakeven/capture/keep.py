"""What of a script's side effects is to be real in runs that only measure."""

from __future__ import annotations

import msgspec


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """What runs of a script leave behind; by default nothing.

    Args:
        writes: Files are written where the script writes them.
        trackers: Experiment trackers log as the script sets them up.
        raw_folders: Folders in which they are in any case, as bytes.
    """

    writes: bool = False
    trackers: bool = False
    raw_folders: tuple[bytes, ...] = ()


KEEP_NOTHING = Keep()

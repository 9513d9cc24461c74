"""Join the edges to the core: from a training script to a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from breakeven.check._check_target import check_target as check_target
from breakeven.check._progress import Progress as Progress
from breakeven.check._progress import SilentProgress as SilentProgress

if TYPE_CHECKING:
    from breakeven.check._check_step import check_step as check_step


def __getattr__(name: str) -> Any:
    if name != "check_step":  # the one that runs in the caller's process, and needs torch there
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from breakeven.check._check_step import check_step

    return check_step

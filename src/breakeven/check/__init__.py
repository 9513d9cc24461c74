"""From a training script, or a function that does one step, to a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from breakeven.check.target_check import check_target as check_target

if TYPE_CHECKING:
    from breakeven.check.step_check import check_step as check_step


def __getattr__(name: str) -> Any:
    if name != "check_step":  # the one that runs in the caller's process, and needs torch there
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from breakeven.check.step_check import check_step

    return check_step

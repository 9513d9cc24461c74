"""Tune, with nothing else of breakeven measuring on this machine meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from breakeven.verdict import TuneReport


def tune_alone(
    target: str, arguments: Sequence[str], *, is_quiet: bool, **options: Any
) -> TuneReport:
    """Return what a tuning finds; one that runs already is waited for.

    Args:
        target: The script.
        arguments: ``sys.argv[1:]`` of it.
        is_quiet: Show no progress.
        options: As ``tune_target`` takes them.
    """
    from breakeven.cli.progress import show_progress
    from breakeven.store import machine_lock
    from breakeven.tune import tune_target

    with show_progress(sys.stderr, is_quiet=is_quiet) as progress:

        def tell_wait() -> None:
            progress.begin("the machine is busy: waiting for another breakeven to finish")

        with machine_lock(tell_wait):
            return tune_target(target, arguments=arguments, progress=progress, **options)

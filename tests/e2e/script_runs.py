"""Runs of scripts through a launcher, as a check makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from check_process import SCRIPTS

from breakeven.capture import Launcher, PlainRun, RunRequest, TracedRun, find_target


def request_of(script: str | Path, *arguments: str, **options: Any) -> RunRequest:
    """Return the request to time a script, by its name in `SCRIPTS` or its whole path."""
    target = find_target(str(SCRIPTS / script), arguments)
    options = {"is_traced": False, "time_limit_s": 60.0, "budget_s": 0.05, **options}
    return RunRequest(target=target, **options)


def recorded(launcher: Launcher, script: str | Path, *arguments: str, **options: Any) -> TracedRun:
    run = launcher.run(request_of(script, *arguments, is_traced=True, **options))
    assert isinstance(run, TracedRun), (run, launcher.output)
    return run


def timed(launcher: Launcher, script: str | Path, *arguments: str, **options: Any) -> PlainRun:
    run = launcher.run(request_of(script, *arguments, **options))
    assert isinstance(run, PlainRun), (run, launcher.output)
    return run

"""Options that several commands have."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

# A real script may take minutes to its first step; what it does is shown meanwhile.
_SCRIPT_LIMIT_S = 300.0


def add_target(parser: argparse.ArgumentParser, *, more: str = "") -> None:
    """Add the script that a command runs.

    Args:
        parser: Of the command.
        more: What else it takes, for the help.
    """
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="script.py, or path.py:function, or with -m a module's name" + more,
    )


def add_module(parser: argparse.ArgumentParser) -> None:
    """Add how the target is started."""
    parser.add_argument(
        "-m",
        "--module",
        dest="is_module",
        action="store_true",
        help="TARGET is a module, run as python -m does",
    )


def add_comparison(parser: argparse.ArgumentParser) -> None:
    """Add what is compared with, and how the script is started."""
    parser.add_argument(
        "--device",
        dest="devices",
        metavar="NAME",
        action="append",
        default=[],
        help="GPU to compare with; may be repeated (default: a choice of six; "
        "all: breakeven devices)",
    )
    parser.add_argument(
        "--host",
        metavar="here|NAME",
        default="here",
        help="machine that feeds the GPUs: here, reference (a typical server), or a CPU such as "
        "'EPYC 7763' (default: here; all: breakeven devices --hosts)",
    )
    add_module(parser)


def add_time_limit(
    parser: argparse.ArgumentParser,
    *,
    default_s: float = _SCRIPT_LIMIT_S,
    script: str = "the script",
) -> None:
    """Add the limit of a run.

    Args:
        parser: Of the command.
        default_s: Limit where none is given, in seconds.
        script: What runs, for the help.
    """
    parser.add_argument(
        "--time-limit",
        dest="time_limit_s",
        metavar="SECONDS",
        type=_seconds,
        default=default_s,
        help=f"give up on a run of {script} after that long (default: {default_s:g})",
    )


def is_stored_run(target: str | Path) -> bool:
    """Return whether ``explain`` reads a target as a stored run, by its suffix."""
    return Path(target).suffix.lower() == ".json"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds

"""Options that several commands have."""

from __future__ import annotations

import argparse
import math
import os
import re
from pathlib import Path
from typing import Any

from breakeven.errors import UsageError

# A real script may take minutes to its first step; what it does is shown meanwhile.
_SCRIPT_LIMIT_S = 300.0


def add_target(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the script that a command runs, and ``more`` that it may be."""
    what = "script.py, or path.py:function, or with -m a module's name"
    parser.add_argument("target", metavar="TARGET", help=what + more)
    parser.add_argument_group(
        "arguments of the script",
        "-- ARGS ...  everything after -- is passed on to the script",
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


def add_comparison(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add what is compared with, ``more`` that may be named, and how the script is started."""
    parser.add_argument(
        "--device",
        dest="devices",
        metavar="NAME",
        action="append",
        default=[],
        help=f"GPU to compare with{more}; may be repeated (default: a choice of six; "
        "all: breakeven devices)",
    )
    parser.add_argument(
        "--host",
        metavar="here|KIND|NAME",
        default="auto",
        help="machine that feeds the GPUs: here, a kind (desktop, windows, cloud, colab), or a CPU "
        "such as 'EPYC 7763' (default: for data-center GPUs a cloud machine, for others this CPU; "
        "all: breakeven devices --hosts)",
    )
    add_module(parser)


def add_measured(parser: argparse.ArgumentParser) -> None:
    """Add speeds that were measured elsewhere."""
    parser.add_argument(
        "--measured",
        metavar="SPEED",
        action="append",
        default=[],
        help="speed of this script on a GPU elsewhere, such as 'T4: 340 it/s' or 'colab T4: 45 "
        "s/epoch': it shows how fast the host there is, also for later checks; units: it/s, s/it, "
        "s, ms, us, s/epoch, min/epoch, samples/s; may be repeated",
    )


def add_time_limit(
    parser: argparse.ArgumentParser, default_s: float = _SCRIPT_LIMIT_S, script: str = "the script"
) -> None:
    """Add the limit of a run of ``script``."""
    parser.add_argument(
        "--time-limit",
        dest="time_limit_s",
        metavar="SECONDS",
        type=_seconds,
        default=default_s,
        help=f"stop a run of {script} after this time (default: {default_s:g})",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the limit of a run, and which of the script's side effects are to be real."""
    add_time_limit(parser)
    parser.add_argument(
        "--keep-writes",
        action="store_true",
        help="keep the files that the script writes (default: discard them)",
    )
    parser.add_argument(
        "--keep-writes-in",
        dest="kept_folders",
        metavar="FOLDER",
        type=Path,
        action="append",
        default=[],
        help="keep files written in FOLDER, such as downloads; may be repeated",
    )
    parser.add_argument(
        "--keep-trackers",
        action="store_true",
        help="let W&B, MLflow and other trackers log (default: kept quiet)",
    )


def run_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return how to run the script, as a driver takes it by name.

    Raises:
        UsageError: There is no such folder.
    """
    # Imported here, since --help must not wait for it.
    from breakeven.capture import Keep

    for folder in args.kept_folders:
        if not folder.is_dir():
            raise UsageError(f"--keep-writes-in: there is no folder {str(folder)!r}")
    folders = tuple(os.fsencode(folder.resolve()) for folder in args.kept_folders)
    return {
        "arguments": args.script_arguments,
        "is_module": args.is_module,
        "time_limit_s": args.time_limit_s,
        "keep": Keep(writes=args.keep_writes, trackers=args.keep_trackers, raw_folders=folders),
    }


def session_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the same with what is compared with."""
    return {**run_options(args), "devices": tuple(args.devices), "host": args.host}


def add_json(parser: argparse.ArgumentParser, document: str = "report") -> None:
    """Add that the answer is printed as JSON."""
    parser.add_argument("--json", action="store_true", help=f"print the {document} as JSON")


def add_output(
    parser: argparse.ArgumentParser, document: str = "report", *, has_recording: bool = False
) -> None:
    """Add where the answer goes.

    Args:
        parser: Of the command.
        document: The answer, for the help.
        has_recording: The file holds the recorded step too.
    """
    add_json(parser, document)
    more = ", with the recorded step, the source of the script and the paths of its files"
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help=f"also write the {document} as JSON to FILE{more if has_recording else ''}",
    )
    if has_recording:
        parser.add_argument(
            "--no-source",
            dest="has_source",
            action="store_false",
            help="omit the source and the folders of its files from FILE",
        )


def add_force(parser: argparse.ArgumentParser, replaced: str) -> None:
    """Add that files may be replaced, and that progress is not shown."""
    parser.add_argument("--force", action="store_true", help=f"let {replaced}")
    add_quiet(parser)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add that progress is not shown."""
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show progress on stderr")


def is_stored_run(target: str | Path) -> bool:
    """``explain`` reads the target as a stored run, by its suffix."""
    return Path(target).suffix.lower() == ".json"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def duration_s(text: str) -> float:
    """Return ``60``, ``60s``, ``2m`` or ``1h`` in seconds.

    Raises:
        argparse.ArgumentTypeError: It is no time above 0.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(s|min|m|h|)", text)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0, such as 30s or 2m")
    return seconds


def whole_number(text: str) -> int:
    """Return ``10000``, ``10,000`` or ``10_000`` as a number.

    Raises:
        argparse.ArgumentTypeError: It is no whole number above 0.
    """
    digits = re.sub("[_,]", "", text)
    # Python itself refuses to read numbers of thousands of digits.
    if not re.fullmatch(r"[0-9]{1,18}", digits) or not text[0].isdigit() or not int(digits):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(digits)

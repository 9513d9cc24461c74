"""Options shared by several commands."""

from __future__ import annotations

import argparse
import math
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from breakeven.errors import UsageError

if TYPE_CHECKING:
    from breakeven.report import Condition

# A real script may take minutes to its first step; progress is shown meanwhile.
_SCRIPT_LIMIT_S = 300.0


def add_target(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the target: a script, or the forms in ``more``."""
    what = "script.py, or path.py:function, or with -m a module's name"
    parser.add_argument("target", metavar="TARGET", help=what + more)
    parser.add_argument_group(
        "arguments of the script",
        "-- ARGS ...  everything after -- is passed on to the script",
    )


def add_module(parser: argparse.ArgumentParser) -> None:
    """Add the option that starts the target as a module."""
    parser.add_argument(
        "-m",
        "--module",
        dest="is_module",
        action="store_true",
        help="TARGET is a module, run as python -m does",
    )


def add_comparison(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the devices to compare with (and ``more``), the host, and the module option."""
    device = parser.add_argument(
        "--device",
        dest="devices",
        metavar="NAME",
        action="append",
        default=[],
        help=f"GPU to compare with{more}; may be repeated (default: a choice of six; "
        "all: breakeven devices)",
    )
    complete_devices(device)
    parser.add_argument(
        "--host",
        metavar="here|KIND|NAME",
        default="auto",
        help="machine that feeds the GPUs: here, a kind (desktop, windows, cloud, colab, kaggle), "
        "or a CPU such as 'EPYC 7763' (default: for data-center GPUs a cloud machine, for others "
        "this CPU; all: breakeven devices --hosts)",
    )
    add_module(parser)


def complete_devices(option: argparse.Action) -> None:
    """Let argcomplete propose the devices of the catalogue."""

    def names(**_: object) -> list[str]:
        from breakeven.device import load_catalogue

        return [device.id for device in load_catalogue()]

    option.completer = names  # pyright: ignore[reportAttributeAccessIssue]


def add_measured(parser: argparse.ArgumentParser) -> None:
    """Add the option for speeds measured on other machines."""
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
    """Add the time limit of a run of ``script``."""
    parser.add_argument(
        "--time-limit",
        dest="time_limit_s",
        metavar="SECONDS",
        type=_seconds,
        default=default_s,
        help=f"stop a run of {script} after this time (default: {default_s:g})",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the time limit of a run, and the side effects to keep."""
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
    """Return the options of a run, as keyword arguments of a study.

    Raises:
        UsageError: A folder to keep does not exist.
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
    """Return the same, plus the devices and host to compare with."""
    return {**run_options(args), "devices": tuple(args.devices), "host": args.host}


def add_json(parser: argparse.ArgumentParser, document: str = "report") -> None:
    """Add the option for JSON output."""
    parser.add_argument("--json", action="store_true", help=f"print the {document} as JSON")


def add_output(
    parser: argparse.ArgumentParser, document: str = "report", *, has_recording: bool = False
) -> None:
    """Add the options for the destination of the answer.

    Args:
        parser: Parser of the command.
        document: Name of the answer, for the help.
        has_recording: Whether the file also contains the recorded step.
    """
    add_json(parser, document)
    more = ", with the recorded step, the command, and the source and paths of the script"
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
            help="omit the source, the folders of its files and the command from FILE",
        )


def add_force(parser: argparse.ArgumentParser, replaced: str) -> None:
    """Add the options to replace files and to hide progress."""
    parser.add_argument("--force", action="store_true", help=f"let {replaced}")
    add_quiet(parser)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add the option to hide progress."""
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show progress on stderr")


def add_conditions(parser: argparse.ArgumentParser, forms: str) -> None:
    """Add the options for conditions under which the exit code is 1.

    Args:
        parser: Parser of the command.
        forms: Examples of conditions, each in single quotes.
    """
    parser.add_argument(
        "--fail-if",
        dest="conditions",
        metavar="CONDITION",
        action="append",
        default=[],
        help="exit with 1 if the answer meets this condition, over its whole interval; may be "
        f"repeated: {forms.replace('%', '%%')}",
    )
    text = "with --fail-if: a part of the interval suffices"
    parser.add_argument("--strict", action="store_true", help=text)


def read_conditions(args: argparse.Namespace, forms: str) -> tuple[Condition, ...]:
    """Return the conditions of ``--fail-if``.

    Raises:
        UsageError: The command knows no such condition, or ``--strict`` has no condition.
        BreakevenError: There is no rule or no GPU of this name.
    """
    if not args.conditions:
        if args.strict:
            raise UsageError("--strict is about --fail-if, which was not given")
        return ()
    # Imported here, since --help must not wait for it.
    from breakeven.report import parse_condition

    return tuple(parse_condition(text, forms) for text in args.conditions)


def is_stored_run(target: str | Path) -> bool:
    """Return whether ``explain`` reads the target as a stored run, by its suffix."""
    return Path(target).suffix.lower() == ".json"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


_UNITS_S = {"d": 86_400.0, "h": 3_600.0, "min": 60.0, "m": 60.0, "s": 1.0}
_TIME_PART = r"([0-9]+(?:\.[0-9]+)?) ?(d|h|min|m|s)"


def duration_s(text: str, *, may_be_zero: bool = False) -> float:
    """Return ``60``, ``60s``, ``2m`` or ``1h30m`` in seconds.

    Raises:
        argparse.ArgumentTypeError: The text is not a time above 0, or of at least 0.
    """
    # Only a number alone may lack its unit: the 30 of 1h30 could be minutes.
    whole = text if re.search("[a-z]", text) else f"{text}s"
    is_time = re.fullmatch(f"{_TIME_PART}(?: ?{_TIME_PART})*", whole) is not None
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_TIME_PART, whole))
    if not (is_time and seconds < math.inf and (seconds or may_be_zero)):
        least = "of at least 0" if may_be_zero else "above 0"
        raise argparse.ArgumentTypeError(f"{text!r} is not a time {least}, such as 30s or 1h30m")
    return seconds


def whole_number(text: str) -> int:
    """Return ``10000``, ``10,000``, ``10_000`` or ``1e4`` as a number.

    Raises:
        argparse.ArgumentTypeError: The text is not a whole number above 0.
    """
    # A comma sets off three digits: 8,64 is a list. Python refuses thousands of digits.
    digits = re.sub(r",(?=[0-9]{3}(?:,|$))|_", "", text) if text[:1].isdigit() else ""
    is_number = re.fullmatch(r"[0-9]{1,18}|[0-9]{1,18}(\.[0-9]{1,18})?[eE][0-9]{1,2}", digits)
    number = Decimal(digits) if is_number else Decimal(0)
    if not 0 < number < 10**18 or number % 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(number)


def comma_names(text: str) -> tuple[str, ...]:
    """Return the names in ``aws,hf``."""
    return tuple(name.strip() for name in text.split(",") if name.strip())

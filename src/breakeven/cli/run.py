"""``breakeven run``: runs the user's unmodified script to its end, in the fastest configuration."""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from breakeven.cli.dispatch import TakesOver
from breakeven.cli.options import add_module, add_target, duration_s, whole_number
from breakeven.cli.output import say
from breakeven.tune import DEFAULT_BUDGET

if TYPE_CHECKING:
    from breakeven.store import Tuned
    from breakeven.tune import RunTarget

SUMMARY = "run a training script to its end, under the fastest configuration"
DESCRIPTION = """\
Run a script to its end, as python does: its arguments, input, output, signals and
exit code are its own, and its file is not changed. The settings that `breakeven
tune` wrote to breakeven.toml in the current folder are in effect; without such a
file for this script it is tuned first. If one of them is fast_step, its loop runs in
memory with each step as one compiled call. A file for another machine, or for other
versions of torch, Python or breakeven, is refused.

At a terminal the last line shows steps per second, device and time; at the end one
line on stderr says what was done. Exit codes: the script's own, or before it begins
2 wrong command line, 3 the file was refused or the tuning failed."""
_FAST_STEP = (
    "fast_step: each step is one compiled call; the loop is changed in memory, the file is not "
    "(without it: --no-fast-step, or --exact)"
)
USAGE = "run TARGET [options] [-- ARGS ...]"
EXAMPLES = """\
examples:
  breakeven run train.py
  breakeven run train.py --steps 50000 -- --lr 0.1
  breakeven run -m package.train --config tuned/server.toml"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run``."""
    add_target(parser)
    add_module(parser)
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="configuration that breakeven tune wrote (default: breakeven.toml in the current "
        "folder, if it is for TARGET)",
    )
    parser.add_argument(
        "--steps",
        dest="num_steps",
        metavar="N",
        type=whole_number,
        default=0,
        help="length of the run in steps, to show the time left and choose what pays off",
    )
    parser.add_argument(
        "--budget",
        dest="budget_s",
        metavar="TIME",
        type=duration_s,
        default=0.0,
        help=f"limit of a tuning before the run, such as 30s or 2m (default: {DEFAULT_BUDGET})",
    )
    parser.add_argument(
        "--exact",
        dest="is_exact_only",
        action="store_true",
        help="use only settings that keep the training bit for bit the same",
    )
    parser.add_argument(
        "--no-fast-step",
        dest="uses_fast_step",
        action="store_false",
        help="never replace a step of the loop by one compiled call",
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="write only the output of the script"
    )


def run(args: argparse.Namespace) -> NoReturn:
    """Find the configuration, and become the script; returns only by an error."""
    # Imported here, since --help must not wait for them.
    from breakeven.capture import become_script, go_on_as_script
    from breakeven.tune import (
        RunTarget,
        check_runnable,
        end_request,
        pays_after_s,
        stored_configuration,
    )

    target = RunTarget(text=args.target, arguments=args.script_arguments, is_module=args.is_module)
    check_runnable(target)
    stored = stored_configuration(target, args.config, is_exact_only=args.is_exact_only)
    tuned = stored or _tune_first(target, args)
    if stored is None:
        origin = "found now"
    else:
        origin = f"from {args.config or 'breakeven.toml'} of {tuned.evidence.date}"
        # Name other arguments instead of refusing them: another number of epochs leaves the step
        # the same, a wider network does not.
        if tuned.arguments != tuple(args.script_arguments):
            origin += f", found with {shlex.join(tuned.arguments) or 'no arguments'}"
    if tuned.configuration.fast_step and not args.uses_fast_step:
        tuned = replace(tuned, configuration=replace(tuned.configuration, fast_step=False))
        origin += ", less fast_step"
    say(_announcement(tuned, origin), is_quiet=args.quiet)
    if tuned.configuration.fast_step:
        say(_FAST_STEP, is_quiet=args.quiet)
    waits_s = pays_after_s(target, tuned, args.num_steps)
    if waits_s and (tuned.configuration.fast_step or tuned.configuration.compile_mode):
        say(
            "this run may be too short to pay for compiling, which begins after "
            f"{waits_s:.2g} s of its own steps (--steps sets its length)",
            is_quiet=args.quiet,
        )
    request = end_request(
        target, tuned, num_steps=args.num_steps, is_quiet=args.quiet, pays_after_s=waits_s
    )
    # Tuning and the query for a GPU import modules, and a script must start from Python's initial
    # state.
    if stored is None or tuned.device == "gpu":
        become_script(request, target.text, target.arguments)
    raise TakesOver(partial(go_on_as_script, request, target.text, target.arguments))


def _tune_first(target: RunTarget, args: argparse.Namespace) -> Tuned:
    from breakeven.cli.tune import tune_alone
    from breakeven.store import tuned_of

    budget = f"{args.budget_s:g} s" if args.budget_s else DEFAULT_BUDGET
    say(
        f"there is no breakeven.toml for {target.text} here: tuning it first, for at most "
        f"{budget}; to keep the result: {target.command('breakeven', 'tune')}",
        is_quiet=args.quiet,
    )
    report = tune_alone(
        target.text,
        arguments=target.arguments,
        is_quiet=args.quiet,
        is_module=target.is_module,
        budget_s=args.budget_s,
        num_steps=args.num_steps,
        is_exact_only=args.is_exact_only,
        uses_fast_step=args.uses_fast_step,
    )
    return tuned_of(report)


def _announcement(tuned: Tuned, origin: str) -> str:
    from breakeven.capture import settings_text
    from breakeven.units import format_ratio

    if not tuned.configuration.changes:
        return f"nothing was faster than the script as it is ({origin})"
    return (
        f"{settings_text(tuned.configuration)} ({origin}: "
        f"{format_ratio(tuned.evidence.speedup)} as fast, numbers {tuned.evidence.numerics})"
    )

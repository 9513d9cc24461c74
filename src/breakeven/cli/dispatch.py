"""The program: parses, dispatches, handles signals, and turns every ending into an exit code."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import platform
import re
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import fill
from time import monotonic
from types import FrameType
from typing import NoReturn

from breakeven import __version__
from breakeven.errors import BreakevenError, UsageError

EXIT_NO_ANSWER = 3
# Errors that mean that stdout cannot take the answer, for example because the disk is full.
_FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT})
# Exit code that a shell reports for a program ended by SIGPIPE.
EXIT_BROKEN_PIPE = 141

_COMMANDS = (
    "check",
    "calibrate",
    "compare",
    "cost",
    "devices",
    "explain",
    "mcp",
    "normal",
    "prices",
    "report",
    "rules",
    "run",
    "sweep",
    "tune",
    "validate",
    "workloads",
)
# Options that change where the answer goes, but not the answer; a file follows those of the second.
_OUTPUT_FLAGS = frozenset({"--json", "--force", "--quiet", "-q", "--no-source"})
_OUTPUT_FILES = frozenset({"-o", "-qo", "--output", "--chart", "--trace", "--write-patch"})
# Commands whose target is a script with possible arguments.
_SCRIPT_COMMANDS = ("check", "cost", "explain", "normal", "run", "sweep", "tune")


_EPILOG = """\
The answer goes to stdout, everything else to stderr. Exit codes: 0 done, 1 the answer
meets a condition (--fail-if, --max-usd), 2 wrong command line, 3 no answer (the script failed, an
unknown device, ...).

example:
  breakeven check train.py"""


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """Return the parser of the command line; each command's ``run`` is in ``args.run``.

    Args:
        command: The only command to import; all commands if it names none.
    """
    parser = Parser(
        prog="breakeven",
        description="Does a GPU pay off for your PyTorch training step, and from which size on?",
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=_VersionAction, nargs=0, help="show versions and exit", dest="version"
    )
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for name in (command,) if command in _COMMANDS else _COMMANDS:
        module = import_module(f"breakeven.cli.{name}")
        subparser = subparsers.add_parser(
            name,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            epilog=module.EXAMPLES,
            usage=f"breakeven {module.USAGE}",
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        module.prepare_parser(subparser)
        subparser.set_defaults(run=module.run, options=tuple(subparser._option_string_actions))
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code.

    Returns:
        0 done; 1 the answer meets a condition of the user; 2 invalid command line; 3 no
        answer; 130 interrupted; 129 and 143 terminated by SIGHUP and SIGTERM; 141 the reader closed
        the output.
    """
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - closed by the shell
        _write_line("error: cannot write the answer to stdout: it is closed")
        return EXIT_NO_ANSWER
    try:
        exit_code = run_command(argv)
        sys.stdout.flush()
        return exit_code
    except SystemExit as ended:  # argparse after --help and --version
        return ended.code if isinstance(ended.code, int) else 0
    except BrokenPipeError:
        _discard_stdout()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt as interrupt:
        number = interrupt.number if isinstance(interrupt, EndingSignal) else signal.SIGINT
        _write_line("interrupted" if number == signal.SIGINT else "terminated")
        return 128 + number
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            _discard_stdout()
            _write_line(f"error: cannot write the answer to stdout: {error.strerror}")
            return EXIT_NO_ANSWER
        return _fail(error)


def _fail(error: Exception) -> int:
    """Show the reason for the missing answer, and return its exit code."""
    is_ours = isinstance(error, BreakevenError)
    if not (is_ours and error.exit_code != EXIT_NO_ANSWER) and not _has_folder():
        reason = error.message if is_ours else traceback.format_exc().splitlines()[-1]
        error = BreakevenError(
            f"the current folder is gone: it was deleted or moved; then: {reason}",
            hint="change to a folder that exists, and start again; if the script removes it, let "
            "the script use a folder of its own",
        )
    if isinstance(error, BreakevenError):
        from breakeven.cli.console import show_error

        show_error(error)
        return error.exit_code
    _write_line(traceback.format_exc().rstrip())
    _write_line(
        f"error: this is a bug in breakeven {__version__}; "
        "please report it with the lines above and your command"
    )
    return EXIT_NO_ANSWER


def _has_folder() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True


class TakesOver(BaseException):
    """Ends the command line and hands the process over to a script.

    Args:
        script: Runs the script.
    """

    def __init__(self, script: Callable[[], None]) -> None:
        super().__init__()
        self.script = script


def entry_point() -> None:
    """Run the command line of this process and exit, or let the script take over."""
    streams = [one for one in (sys.stdout, sys.stderr) if isinstance(one, io.TextIOWrapper)]
    errors = [stream.errors for stream in streams]
    for stream in streams:
        # A terminal that cannot show "×" gets "?" instead of a traceback.
        stream.reconfigure(errors="replace")
    if "_ARGCOMPLETE" in os.environ:  # a shell asks how the command line goes on
        from argcomplete import autocomplete

        autocomplete(build_parser())
    signals = EndingSignals()
    signals.listen()
    try:
        exit_code = main(sys.argv[1:])
    except TakesOver as taken:
        script = taken.script
    else:
        signals.ignore()
        # A failure on the way out, for example of a closed terminal, is not the reason for the
        # exit.
        sys.exit(signals.exit_code or exit_code)
    # Restore Python's initial state. Exceptions of the script must have no context of ours.
    signals.leave()
    program = Path(getattr(sys.modules["__main__"], "__file__", ""))
    if Path(sys.path[0]).resolve() == program.resolve().parent:
        del sys.path[0]
    for stream, before in zip(streams, errors, strict=True):
        stream.reconfigure(errors=before)
    script()


def run_command(argv: Sequence[str]) -> int:
    """Run one command and return its exit code, 0 or 1.

    Raises:
        BreakevenError: The command has no answer.
        SystemExit: The user asked for help or versions, which are written to stdout.
    """
    own, script_arguments = list(argv), ()
    if "--" in own:
        position = own.index("--")
        own, script_arguments = own[:position], tuple(own[position + 1 :])
    if own and not own[0].startswith("-"):
        _ensure_command(own[0])
    parser = build_parser(own[0] if own else "")
    args, unknown = parser.parse_known_args(own)
    if args.command is None:
        if unknown or script_arguments:
            parser.error("the following arguments are required: COMMAND")
        parser.print_help()
        return 0
    if unknown:
        given = shlex.join(unknown)
        hint = f"see: breakeven {args.command} --help"
        if args.command in _SCRIPT_COMMANDS:
            axes = [word for axis in getattr(args, "over", ()) for word in ("--over", axis)]
            command = shlex.join(["breakeven", args.command, args.target, *axes])
            hint = f"arguments of the script go after --: {command} -- {given}"
        if near := get_close_matches(unknown[0], args.options, n=1, cutoff=0.8):
            hint = f"did you mean {near[0]}? {hint}"
        raise UsageError(f"unrecognized arguments: {given}", hint=hint)
    if script_arguments and args.command not in _SCRIPT_COMMANDS:
        raise UsageError(f"{args.command} takes nothing after --")
    args.script_arguments = script_arguments
    args.command_line = answer_command(argv)
    return int(args.run(args))


def _ensure_command(word: str) -> None:
    if word in _COMMANDS:
        return
    hint = f"commands: {', '.join(_COMMANDS)}"
    if word.endswith((".py", ".ipynb")):
        hint = f"to check a script: breakeven check {shlex.quote(word)}"
    elif near := get_close_matches(word, _COMMANDS, n=1):
        hint = f"did you mean breakeven {near[0]}?"
    raise UsageError(f"there is no command {word!r}", hint=hint)


def answer_command(argv: Sequence[str]) -> str:
    """Return the command for a shell, without the options that only direct the output.

    Args:
        argv: The command line, without the program.
    """
    kept, words = ["breakeven"], iter(argv)
    for word in words:
        name, equals, _ = word.partition("=")
        if word == "--":
            kept += [word, *words]
        elif name in _OUTPUT_FILES:
            if not equals:
                next(words, None)
        elif word not in _OUTPUT_FLAGS and not re.match("-q?o.", word):
            kept.append(word)
    return shlex.join(kept)


def _write_line(text: str) -> None:
    with contextlib.suppress(OSError):  # its reader or the terminal may be closed
        sys.stderr.write(text + "\n")


def _discard_stdout() -> None:
    # Data left in the buffer would raise again when the interpreter flushes at exit.
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


class _VersionAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        # Slow to import, and needed only here.
        from importlib.metadata import PackageNotFoundError, version

        try:
            torch_version = version("torch")
        except PackageNotFoundError:
            torch_version = "not installed"
        from breakeven.device import calibration_files

        calibrations = b"".join(document for _, document in calibration_files())
        newest = max(re.findall(rb'"date":"([0-9-]+)"', calibrations)).decode()
        sys.stdout.write(
            f"breakeven {__version__} (torch {torch_version}, Python {platform.python_version()}, "
            f"GPU calibrations up to {newest})\n"
        )
        parser.exit()


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with unwrapped examples, and ``-o, --output FILE`` as in Python 3.13."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        # Paragraphs with indented lines are examples and tables.
        wrapped = partial(fill, width=width, initial_indent=indent, break_on_hyphens=False)
        return "\n\n".join(part if "\n  " in part else wrapped(part) for part in text.split("\n\n"))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        metavar = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {metavar}"


class Parser(argparse.ArgumentParser):
    """A parser that raises ``UsageError`` instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError`` with the message, and the help command as hint."""
        raise UsageError(message, hint=f"see: {self.prog} --help")


# Longer than it takes to end all work. Ignore further signals until then; accept them later, in
# case other code swallowed the exception.
_CLEAN_UP_S = 10.0
# Delay before a signal is sent again if its exception was dropped.
_AGAIN_S = 0.01
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_ENDING = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


class EndingSignal(KeyboardInterrupt):
    """A signal that asks the program to end.

    Args:
        number: Number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class EndingSignals:
    """Raises an `EndingSignal` for each ending signal, so that all act like Ctrl-C.

    Signals come from `docker stop`, `timeout`, Slurm, CI, and a closed terminal. The exception
    passes every ``with`` and ``finally``, which end processes and remove files.
    """

    def __init__(self) -> None:
        self._deaf_until_s = 0.0
        # Exit code that a shell reports for a program ended by such a signal; 0 without a signal.
        self.exit_code = 0
        self._before = {number: signal.getsignal(number) for number in _ENDING}

    def listen(self) -> None:
        """Handle all signals except ignored ones, such as SIGHUP under ``nohup``."""
        self._handle(self._raise)
        sys.unraisablehook = self._raise_again

    def ignore(self) -> None:
        """Ignore all signals: the program is about to end."""
        self._handle(signal.SIG_IGN)

    def leave(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        sys.unraisablehook = sys.__unraisablehook__

    def _handle(self, handler: signal._HANDLER) -> None:
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)

    def _raise(self, number: int, _: FrameType | None) -> None:
        now_s = monotonic()
        if now_s >= self._deaf_until_s:
            self._deaf_until_s = now_s + _CLEAN_UP_S
            self.exit_code = self.exit_code or 128 + number
            raise EndingSignal(number)

    def _raise_again(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Send a signal again if Python dropped its exception, for example in a finalizer."""
        ending = unraisable.exc_value
        if not isinstance(ending, EndingSignal):
            sys.__unraisablehook__(unraisable)
            return
        self._deaf_until_s = 0.0
        send = partial(signal.raise_signal, ending.number)
        main_thread = threading.main_thread().ident
        if hasattr(signal, "pthread_kill") and main_thread:  # interrupts its blocking call
            send = partial(signal.pthread_kill, main_thread, ending.number)
        threading.Timer(_AGAIN_S, send).start()

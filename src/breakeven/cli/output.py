"""Output of commands: the answer to stdout and to files, and messages about the work."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from breakeven.errors import UsageError

if TYPE_CHECKING:
    from breakeven.report import Condition, Figures
    from breakeven.report.document import Document


class Front(NamedTuple):
    """A notebook in which a command runs.

    Args:
        receive: Receives the report instead of stdout.
        draw: Shows one line of progress; None in a terminal, which shows progress as always.
    """

    receive: Callable[[msgspec.Struct], None]
    draw: Callable[[str], None] | None


FRONT: ContextVar[Front | None] = ContextVar("FRONT", default=None)


def write_stdout(document: bytes) -> None:
    """Write a UTF-8 document to stdout, unchanged if stdout accepts bytes."""
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:  # replaced by a text-only stream, as in a notebook
        sys.stdout.write(document.decode())
        return
    sys.stdout.flush()
    buffer.write(document)
    buffer.flush()


def say(text: str, *, is_quiet: bool) -> None:
    """Write a line about the work to stderr."""
    if not is_quiet:
        from breakeven.report import printable

        sys.stderr.write(f"breakeven: {printable(text, None)}\n")


def ensure_files(files: Mapping[str, Path | None], args: argparse.Namespace) -> None:
    """Before the work, refuse files that could not be written after it.

    Args:
        files: Files by option, such as ``-o FILE``; None if not given.
        args: Parsed arguments; with ``force``, existing files may be replaced.

    Raises:
        UsageError: An option needs a file that was not given, or two options name the same file.
        BreakevenError: A file exists already, or cannot be written.
    """
    # Imported here, since --help must not wait for it.
    from breakeven.store import ensure_writable

    given = {option: file for option, file in files.items() if file is not None}
    if not getattr(args, "has_source", True) and args.output is None:
        raise UsageError("--no-source is about -o FILE, which was not given")
    if args.force and not given:
        were = "were" if len(files) > 1 else "was"
        raise UsageError(f"--force is about {' and '.join(files)}, which {were} not given")
    if len({file.resolve() for file in given.values()}) < len(given):
        flags = " and ".join(option.split()[0] for option in given)
        raise UsageError(f"{flags} name the same file")
    for file in given.values():
        ensure_writable(file, force=args.force)


def write_report(report: Any, args: argparse.Namespace) -> None:
    """Write the answer to ``-o FILE``, with its recorded step."""
    from breakeven.report import to_json, without_source
    from breakeven.store import write_document

    if args.output is not None:
        stored = report if getattr(args, "has_source", True) else without_source(report)
        write_document(args.output, to_json(stored, with_recording=True), force=args.force)


def print_report(
    report: msgspec.Struct,
    args: argparse.Namespace,
    *,
    write: Callable[[Any, argparse.Namespace], None] = lambda *_: None,
    hints: Callable[[], Sequence[str]] = tuple,
    **options: object,
) -> None:
    """Write files, and the answer to stdout or to the notebook, with the command that made it.

    Args:
        report: The answer.
        args: Parsed arguments; with ``json``, stdout gets the answer as JSON.
        write: Writes the files, from the answer and the arguments.
        hints: Returns the next actions, for output to a person.
        options: Further arguments of the document's builder.
    """
    from breakeven.cli.console import CommandConsole
    from breakeven.report import show, to_json

    if hasattr(report, "command"):
        report = msgspec.structs.replace(report, command=args.command_line)
    try:
        write(report, args)
    finally:
        # The answer cost the user's time: a full disk must not lose it.
        if args.json:
            write_stdout(to_json(report))
        elif front := FRONT.get():
            front.receive(report)
        else:
            show(report, CommandConsole(), hints=hints(), **options)


def print_sheets(stored: msgspec.Struct, *documents: Document, is_json: bool) -> None:
    """Write catalogue data to stdout: as stored, or as documents below one another."""
    from breakeven.cli.console import CommandConsole
    from breakeven.report import render, to_json

    if is_json:
        write_stdout(to_json(stored))
        return
    console = CommandConsole()
    for number, document in enumerate(documents):
        if number:
            console.line(2)
        render(document, console)


def exit_code(conditions: Iterable[Condition], figures: Figures, args: argparse.Namespace) -> int:
    """Write the conditions that the answer meets to stderr; return 1 if there are any, else 0.

    Args:
        conditions: The conditions of the user.
        figures: Returns the figures of the answer that a condition is about.
        args: Parsed arguments; with ``strict``, a part of an interval suffices.
    """
    from breakeven.report import failed_conditions

    # A log has both streams in one file: the answer comes first, also before an error.
    sys.stdout.flush()
    failed = failed_conditions(conditions, figures, is_strict=args.strict)
    if failed:
        sys.stderr.write("\n  ".join(("breakeven: failed, because", *failed)) + "\n")
    return int(bool(failed))


def json_hint(args: argparse.Namespace, example: str, what: str = "number") -> str:
    """Return a hint with the file or options that give every number as JSON."""
    return f"Every {what} as JSON: {args.output or f'--json, or -o {example}'}"

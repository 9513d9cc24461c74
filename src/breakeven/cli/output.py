"""What commands write: the answer to stdout and to files, and what is said beside it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from breakeven.errors import UsageError

if TYPE_CHECKING:
    import msgspec

    from breakeven.report.document import Document


def write_stdout(document: bytes) -> None:
    """Write a UTF-8 document to stdout, byte by byte as it is where stdout takes bytes."""
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:  # replaced by a text-only stream, as in a notebook
        sys.stdout.write(document.decode())
        return
    sys.stdout.flush()
    buffer.write(document)
    buffer.flush()


def say(text: str, *, is_quiet: bool) -> None:
    """Write a line about the work to stderr, unless nobody wants to know."""
    if not is_quiet:
        from breakeven.report import printable

        sys.stderr.write(f"breakeven: {printable(text, None)}\n")


def ensure_files(files: Mapping[str, Path | None], *, force: bool) -> None:
    """Refuse, before the work, files that could not be written after it.

    Args:
        files: By the option that names each, such as ``-o FILE``; None where it was not given. That
            of a folder, such as ``--report DIR``, is left to the command.
        force: Whether files that are there may be replaced.

    Raises:
        UsageError: ``--force`` is about nothing, or two options name one file.
        BreakevenError: A file is there already, or cannot be written.
    """
    # Imported here, since --help must not wait for it.
    from breakeven.store import ensure_writable

    given = {option: file for option, file in files.items() if file is not None}
    if force and not given:
        were = "were" if len(files) > 1 else "was"
        raise UsageError(f"--force is about {' and '.join(files)}, which {were} not given")
    if len({file.resolve() for file in given.values()}) < len(given):
        flags = " and ".join(option.split()[0] for option in given)
        raise UsageError(f"{flags} name the same file")
    for option, file in given.items():
        if not option.endswith("DIR"):
            ensure_writable(file, force=force)


def write_stored_run(report: Any, args: argparse.Namespace) -> None:
    """Write a check or an explanation where it was asked for, with the step that it rests on."""
    from breakeven.report import to_json
    from breakeven.store import write_document
    from breakeven.verdict import without_source

    if args.output is not None:
        stored = report if args.has_source else without_source(report)
        write_document(args.output, to_json(stored, with_recording=True), force=args.force)


def give_answer(
    report: msgspec.Struct,
    write_files: Callable[[], None] | None = None,
    *,
    is_json: bool,
    hints: Callable[[], Sequence[str]] = tuple,
    **options: object,
) -> None:
    """Write the files that were asked for, and the answer to stdout.

    Args:
        report: The answer.
        write_files: Writes the files.
        is_json: Whether stdout has the answer as JSON.
        hints: Returns what to do next, where stdout has it for a person.
        options: What the builder of its document takes besides.
    """
    from breakeven.cli.console import CommandConsole
    from breakeven.report import show, to_json

    try:
        if write_files is not None:
            write_files()
    finally:
        # The answer took the user's time: a full disk must not lose it.
        if is_json:
            write_stdout(to_json(report))
        else:
            show(report, CommandConsole(), hints=hints(), **options)


def give_sheets(stored: msgspec.Struct, *documents: Document, is_json: bool) -> None:
    """Write what is known beforehand to stdout: as it is stored, or sheets below one another."""
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

"""Documents to stdout, in UTF-8 whatever the terminal's encoding, and what is said beside them."""

from __future__ import annotations

import sys


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
    from breakeven.report import printable

    if not is_quiet:
        sys.stderr.write(f"breakeven: {printable(text, None)}\n")

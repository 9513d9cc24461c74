"""What is known of a run that failed: the exception, the lines that led there, what was missing."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from breakeven.capture.answers import FailureKind, RunFailure
from breakeven.capture.location import (
    as_text,
    is_our_file,
    is_user_file,
    locate,
    location_of,
    user_frame,
)
from breakeven.trace import Location

_FOLDER = Path(__file__).resolve().parents[3]
# The end of a traceback tells most, and the beginning of a message: torch's may list all backends.
_MAX_TRACEBACK = 6_000
# Of a recursion a million calls deep, all but the last would take minutes to format.
_MAX_FRAMES = 100
_MAX_MESSAGE = 1_000


def failure_of(error: BaseException, num_steps: int) -> RunFailure:
    """Return what ended a run, with the user's line that led there.

    Args:
        error: What the script raised.
        num_steps: Steps done until then.
    """
    location = _user_line(error)
    is_exit = isinstance(error, SystemExit)
    return RunFailure(
        kind=FailureKind.EXIT if is_exit else FailureKind.EXCEPTION,
        message=_text_of(error),
        exception=type(error).__name__,
        location=location,
        source=source_line(location),
        num_steps=num_steps,
        missing=_missing_thing(error),
        our_line=_our_line(error),
        traceback=_traceback_of(error),
    )


def failure_in_frame(
    kind: FailureKind, message: str, frame: FrameType | None, num_steps: int
) -> RunFailure:
    """Return what ended a run that did not end by itself.

    Args:
        kind: Why.
        message: What was missing.
        frame: Where the script stood.
        num_steps: Steps done until then.
    """
    location = locate(user_frame(frame))
    return RunFailure(
        kind=kind,
        message=message,
        location=location,
        source=source_line(location),
        num_steps=num_steps,
    )


def _traceback_of(error: BaseException) -> str:
    message = "".join(traceback.format_exception_only(error))
    lines = "".join(traceback.format_exception(error, limit=-_MAX_FRAMES)).removesuffix(message)[
        -_MAX_TRACEBACK:
    ]
    end = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}...\n"
    return as_text(lines + end)


def internal_failure() -> RunFailure:
    """Return the failure that is being handled, which is breakeven's own."""
    return RunFailure(
        kind=FailureKind.INTERNAL,
        message=as_text(traceback.format_exc()),
        exception="breakeven",
    )


def source_line(location: Location | None) -> str:
    """Return the text of a line."""
    return linecache.getline(location.file, location.line).strip() if location else ""


def _text_of(error: BaseException) -> str:
    said: object = error
    if isinstance(error, SystemExit):
        said = error.code if error.code is not None else 0
    if isinstance(error, SyntaxError):
        said = error.msg
    try:
        return as_text(str(said))
    except Exception:  # what the user's class raises
        return f"<{type(said).__name__} without words>"


def _missing_thing(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return error.name or ""
    if isinstance(error, FileNotFoundError):
        return as_text(str(error.filename or ""))
    return ""


def _user_line(error: BaseException) -> Location | None:
    """Return the innermost line of the user that an exception passed."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return location_of(error.filename, error.lineno)
    found = None
    for file, line, name in _lines(error):
        if is_user_file(file):
            found = (file, line, name)
    return location_of(*found) if found else None


def _our_line(error: BaseException) -> Location | None:
    """Return the innermost line of breakeven's that the script called, directly or not."""
    found, is_in_script = None, False
    for file, line, name in _lines(error):
        is_in_script = is_in_script or is_user_file(file)
        if is_in_script and is_our_file(file):
            found = (file, line, name)
    if found is None:
        return None
    file, line, name = found
    return location_of(str(Path(file).resolve().relative_to(_FOLDER)), line, name)


def _lines(error: BaseException) -> Iterator[tuple[str, int, str]]:
    """Yield file, line and function of each frame that an exception passed, outermost first."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line, frame.f_code.co_name

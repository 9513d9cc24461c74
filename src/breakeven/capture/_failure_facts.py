"""What is known of a run that failed: the exception, the lines that led there, what was missing."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from types import FrameType, TracebackType

from breakeven.capture._location import as_text, is_user_file, locate, location_of, user_frame
from breakeven.capture._protocol import FailureKind, RunFailure
from breakeven.trace import Location

_PACKAGE = Path(__file__).resolve().parent.parent
# The end of a traceback tells most, and the beginning of a message: torch's may list all backends.
_MAX_TRACEBACK = 6_000
_MAX_MESSAGE = 1_000


def failure_of(error: BaseException, num_steps: int) -> RunFailure:
    """Return what ended a run, with the user's lines that led there.

    Args:
        error: What the script raised.
        num_steps: Steps done until then.
    """
    stack = _stack_of_error(error)
    location = stack[-1] if stack else None
    kind = FailureKind.EXCEPTION
    if isinstance(error, SystemExit):
        kind = FailureKind.EXIT
    return RunFailure(
        kind=kind,
        message=_text_of(error),
        exception=type(error).__name__,
        location=location,
        source=source_line(location),
        num_steps=num_steps,
        missing=_missing_thing(error),
        stack=stack,
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
        stack=_stack_of_frame(frame),
    )


def _traceback_of(error: BaseException) -> str:
    message = "".join(traceback.format_exception_only(error))
    lines = "".join(traceback.format_exception(error)).removesuffix(message)[-_MAX_TRACEBACK:]
    return lines + (message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}...\n")


def internal_failure() -> RunFailure:
    """Return the failure that is being handled, which is breakeven's own."""
    return RunFailure(
        kind=FailureKind.INTERNAL, message=traceback.format_exc(), exception="breakeven"
    )


def source_line(location: Location | None) -> str:
    """Return the text of a line."""
    return linecache.getline(location.file, location.line).strip() if location else ""


def _text_of(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return as_text(str(error.code if error.code is not None else 0))
    if isinstance(error, SyntaxError):
        return as_text(error.msg)
    return as_text(str(error))


def _missing_thing(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return error.name or ""
    if isinstance(error, FileNotFoundError):
        return as_text(str(error.filename or ""))
    return ""


def _stack_of_error(error: BaseException) -> tuple[Location, ...]:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return (location_of(error.filename, error.lineno),)
    return tuple(
        location_of(file, line, name) for file, line, name in _lines(error) if is_user_file(file)
    )


def _our_line(error: BaseException) -> Location | None:
    """Return the innermost line of breakeven's that the script called, directly or not."""
    found, is_in_script = None, False
    for file, line, name in _lines(error):
        is_in_script = is_in_script or is_user_file(file)
        path = Path(file)
        if is_in_script and path.is_relative_to(_PACKAGE) and not is_user_file(file):
            found = location_of(str(path.relative_to(_PACKAGE.parent)), line, name)
    return found


def _lines(error: BaseException) -> list[tuple[str, int, str]]:
    """Return file, line and function of each frame that an exception passed, outermost first."""
    found: list[tuple[str, int, str]] = []
    step: TracebackType | None = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        found.append((code.co_filename, step.tb_lineno, code.co_name))
        step = step.tb_next
    return found


def _stack_of_frame(frame: FrameType | None) -> tuple[Location, ...]:
    found: list[Location] = []
    while frame is not None:
        location = locate(frame) if is_user_file(frame.f_code.co_filename) else None
        if location is not None:
            found.append(location)
        frame = frame.f_back
    return tuple(reversed(found))

"""Which files are the user's own, what they hold, and which line of them is running."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

from breakeven.capture.target import as_text
from breakeven.trace import Location

_PACKAGE = str(Path(__file__).resolve().parent.parent)
# Training scripts that breakeven ships and runs as anyone's: their lines are what reports point
# at, also where the package is installed among the libraries.
_OWN_SCRIPTS = str(Path(_PACKAGE) / "workloads" / "scripts")


_KINDS = ("stdlib", "platstdlib", "purelib", "platlib")
# Both packages of an editable installation lie in the same folder.
_OURS = (_PACKAGE, str(Path(_PACKAGE).parent / "faststep"))
_LIBRARIES = (*{str(Path(sysconfig.get_paths()[kind]).resolve()) for kind in _KINDS}, *_OURS)


@cache
def _installed_beside() -> tuple[str, ...]:
    """Return what ``pip install --target`` has put into other folders of the search path.

    A folder may hold files of the user too, so each package says what belongs to it.
    """
    found: list[str] = []
    for entry in sys.path:
        # The current folder is gone, or no more files may be opened, or there is no memory left.
        with suppress(OSError, MemoryError):
            folder = Path(entry).resolve()
            if str(folder) not in _LIBRARIES:
                for record in list(folder.glob("*.dist-info/RECORD")):
                    with suppress(OSError, ValueError):
                        lines = record.read_text("utf-8").splitlines()
                        # The folders, with a slash, and files at the top of what is installed.
                        tops = {line.partition(",")[0].partition("/")[:2] for line in lines}
                        found += [
                            f"{folder}/{first}{slash}"
                            for first, slash in tops
                            if not first.endswith((".dist-info", ".."))
                        ]
    return tuple(found)


@cache
def is_user_file(filename: str) -> bool:
    """Return whether ``filename`` belongs to the user: no library, no interpreter, not us."""
    if filename.startswith("<"):
        return False
    try:
        resolved = str(Path(filename).resolve())
    except FileNotFoundError:  # a relative one, where the current folder is gone
        return False
    return resolved.startswith(_OWN_SCRIPTS + "/") or (
        not any(resolved.startswith(folder + "/") for folder in _LIBRARIES)
        and "/site-packages/" not in resolved
        and "/dist-packages/" not in resolved
        and not resolved.startswith(_installed_beside())
    )


@cache
def is_our_file(filename: str) -> bool:
    """Return whether ``filename`` is breakeven's, and none of the scripts that it ships."""
    resolved = Path(filename).resolve()
    return any(map(resolved.is_relative_to, _OURS)) and not is_user_file(filename)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame at or below ``frame`` that runs a file of the user."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def outermost_user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the outermost frame at or below ``frame`` that runs a file of the user."""
    found = frame = user_frame(frame)
    while frame is not None:
        found, frame = frame, user_frame(frame.f_back)
    return found


def runs_user_code(frame: FrameType | None, *, below: CodeType) -> bool:
    """Return whether a file of the user runs in ``frame``, before the call of ``below``."""
    while frame is not None and frame.f_code is not below:
        if is_user_file(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def locate(frame: FrameType | None) -> Location | None:
    """Return the user's line that is running in ``frame`` or called it."""
    found = user_frame(frame)
    if found is None:
        return None
    return location_of(found.f_code.co_filename, found.f_lineno, found.f_code.co_name)


def caller_of_constructor(frame: FrameType | None, instance: object) -> FrameType | None:
    """Return the frame that makes ``instance``, below the constructors of its own classes."""
    while (
        frame is not None
        and frame.f_code.co_name == "__init__"
        and any(frame.f_locals.get(name) is instance for name in frame.f_code.co_varnames[:1])
    ):
        frame = frame.f_back
    return frame


def location_of(file: str, line: int, function: str = "") -> Location:
    """Return a location whose parts can be shown and encoded, whatever the file is called."""
    return Location(file=as_text(file), line=line, function=function)


def file_digest(path: str) -> str | None:
    """Return the SHA-256 of a file in hexadecimal; None if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None

"""The user's files, their contents, and the user's line that is running."""

from __future__ import annotations

import hashlib
import linecache
import sys
import sysconfig
import tokenize
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

from breakeven.capture.target import as_text
from breakeven.trace import CELL_LINES, Location, is_notebook

_PACKAGE = str(Path(__file__).resolve().parent.parent)
# breakeven runs these shipped training scripts like any user's script: reports name their lines,
# even if the package is installed among the libraries.
_OWN_SCRIPTS = str(Path(_PACKAGE) / "workloads" / "scripts")


# No handwritten file is larger; parsing generated ones takes seconds.
_MAX_SOURCE_BYTES = 1_000_000

_KINDS = ("stdlib", "platstdlib", "purelib", "platlib")
# In an editable installation, both packages are in the same folder.
_OURS = (_PACKAGE, str(Path(_PACKAGE).parent / "faststep"))
_LIBRARIES = (*{str(Path(sysconfig.get_paths()[kind]).resolve()) for kind in _KINDS}, *_OURS)


@cache
def _installed_beside() -> tuple[str, ...]:
    """Return the files that ``pip install --target`` put into other folders of ``sys.path``.

    Such a folder may hold the user's files too, so the list comes from each package's record.
    """
    found: list[str] = []
    for entry in sys.path:
        # The current folder is deleted, the limit of open files reached, or memory exhausted.
        with suppress(OSError, MemoryError):
            folder = Path(entry).resolve()
            if str(folder) not in _LIBRARIES:
                for record in list(folder.glob("*.dist-info/RECORD")):
                    with suppress(OSError, ValueError):
                        lines = record.read_text("utf-8").splitlines()
                        # Top-level folders, with a slash, and top-level files of the package.
                        tops = {line.partition(",")[0].partition("/")[:2] for line in lines}
                        found += [
                            f"{folder}/{first}{slash}"
                            for first, slash in tops
                            if not first.endswith((".dist-info", ".."))
                        ]
    return tuple(found)


@cache
def is_user_file(filename: str) -> bool:
    """Return whether ``filename`` is the user's: not a library's, the interpreter's or ours."""
    if filename in _cells:
        return True
    if filename.startswith("<"):
        return False
    try:
        resolved = str(Path(filename).resolve())
    except FileNotFoundError:  # a relative path in a deleted current folder
        return False
    return resolved.startswith(_OWN_SCRIPTS + "/") or (
        not any(resolved.startswith(folder + "/") for folder in _LIBRARIES)
        and "/site-packages/" not in resolved
        and "/dist-packages/" not in resolved
        and not resolved.startswith(_installed_beside())
    )


@cache
def is_our_file(filename: str) -> bool:
    """Return whether ``filename`` is breakeven's, but not one of its shipped scripts."""
    resolved = Path(filename).resolve()
    return any(map(resolved.is_relative_to, _OURS)) and not is_user_file(filename)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame at or below ``frame`` that runs a file of the user."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def runs_user_code(frame: FrameType | None, *, below: CodeType) -> bool:
    """Return whether ``frame`` or a caller of it, up to ``below``, runs a file of the user."""
    while frame is not None and frame.f_code is not below:
        if is_user_file(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def locate(frame: FrameType | None) -> Location | None:
    """Return the user's line that runs in ``frame`` or called it, or None."""
    found = user_frame(frame)
    if found is None:
        return None
    return location_of(found.f_code.co_filename, found.f_lineno, found.f_code.co_name)


def caller_of_constructor(frame: FrameType | None, instance: object) -> FrameType | None:
    """Return the frame that creates ``instance``, outside the constructors of its classes."""
    while (
        frame is not None
        and frame.f_code.co_name == "__init__"
        and any(frame.f_locals.get(name) is instance for name in frame.f_code.co_varnames[:1])
    ):
        frame = frame.f_back
    return frame


# Cells of the notebook in this process, by the names of their code.
_cells: dict[str, tuple[str, int]] = {}


def name_cells(notebook: str, numbers: Mapping[str, int], text: str) -> None:
    """Let locations name the cells of the notebook in this process.

    Args:
        notebook: Name of the notebook, ending in ``.ipynb``.
        numbers: Number of each cell, by the file name of its code.
        text: The notebook's program, as in `breakeven.source.Notebook`.
    """
    _cells.update((name, (notebook, number)) for name, number in numbers.items())
    keep_text(notebook, text)
    is_user_file.cache_clear()  # some kernels name cells as generated code


def keep_text(name: str, text: str) -> None:
    """Let Python find the lines of a notebook, for tracebacks and `inspect`."""
    # Entries without a time of change are never compared with a file.
    linecache.cache[name] = len(text), None, [f"{line}\n" for line in text.split("\n")], name


def location_of(file: str, line: int, function: str = "") -> Location:
    """Return a location that can be shown and encoded, even if the file's name is not UTF-8."""
    if file in _cells:
        file, cell = _cells[file]
        line += cell * CELL_LINES
    return Location(file=as_text(file), line=line, function=function)


def text_of(name: str) -> str:
    """Return the text of a Python file; empty if it is missing, unreadable or too large."""
    # The text of a notebook, and of its cells, is not in a file: Python keeps it for tracebacks.
    if not is_notebook(name):
        try:
            if Path(name).stat().st_size > _MAX_SOURCE_BYTES:
                return ""
            with tokenize.open(name) as file:
                return file.read()
        except (SyntaxError, UnicodeDecodeError):  # the file declares a wrong encoding
            return Path(name).read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):
            pass
    return "".join(linecache.getlines(name))


def file_digest(path: str) -> str | None:
    """Return the SHA-256 of a file in hexadecimal; None if the file cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None

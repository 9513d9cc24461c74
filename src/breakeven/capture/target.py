"""The user's target, found and classified before anything runs.

Import little here: a script started by ``breakeven run`` waits for this module.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path

import msgspec

from breakeven.errors import Caveat, ScriptError
from breakeven.trace.events import is_notebook


class TargetKind(StrEnum):
    """How to start a target."""

    SCRIPT = "script"
    MODULE = "module"
    FUNCTION = "function"


# Skipped lines of a notebook in a caveat.
_MOST_SKIPPED = 5


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The target that the user wants to check.

    Args:
        kind: Script, module (``python -m``) or function.
        raw_path: Absolute path of the file; for a module, its dotted name. File names and
            arguments are bytes, since they need not be UTF-8.
        label: The target as the user wrote it, as printable text.
        raw_name: ``sys.argv[0]`` of the script, its path as the user wrote it; empty for the
            absolute path.
        function: Name of the function; empty for scripts and modules.
        raw_arguments: ``sys.argv[1:]`` of the script.
        skipped: Lines of a notebook that are not Python and do not run, each with its place.
    """

    kind: TargetKind
    raw_path: bytes
    label: str
    raw_name: bytes = b""
    function: str = ""
    raw_arguments: tuple[bytes, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def is_notebook(self) -> bool:
        """Return whether the target is a notebook, whose code cells run as one script."""
        return self.kind is TargetKind.SCRIPT and is_notebook(self.path)

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Return the caveat on the lines of a notebook that do not run."""
        if not self.skipped:
            return ()
        some = "; ".join(self.skipped[:_MOST_SKIPPED])
        more = len(self.skipped) - _MOST_SKIPPED
        some += f"; and {more:,} more" if more > 0 else ""
        message = f"lines of the notebook that are not Python did not run: {some}"
        return (Caveat(code="notebook-magics", message=message),)

    @property
    def path(self) -> str:
        """Return the path as the string that Python's functions accept."""
        return os.fsdecode(self.raw_path)

    @property
    def name(self) -> str:
        """Return the path or module as the user wrote it."""
        return os.fsdecode(self.raw_name or self.raw_path)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the arguments in the form of ``sys.argv``."""
        return tuple(map(os.fsdecode, self.raw_arguments))


def find_target(text: str, arguments: Sequence[str] = (), *, is_module: bool = False) -> Target:
    """Return the target that ``text`` names.

    Args:
        text: ``train.py``, ``train.py:step``, or a module's dotted name.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: Whether ``text`` is a module, as for ``python -m``.

    Raises:
        ScriptError: No such file or module exists, it cannot be read, or a notebook has no code.
    """
    if is_module:
        return _find_module(text, arguments)
    path, function = Path(text), ""
    if not os.path.exists(path) and ":" in text:  # noqa: PTH110
        name, _, function = text.rpartition(":")
        path = Path(name)
    _check_file(path, text)
    if function and not function.isidentifier():
        raise ScriptError(
            f"{function!r} in {text!r} is not the name of a function", hint="write path.py:function"
        )
    skipped: tuple[str, ...] = ()
    if is_notebook(path.name):
        from breakeven.source.notebook import CONVERT, read_notebook

        if function:
            raise ScriptError(
                f"{text!r} names a function of a notebook, which is run as a whole",
                hint=f"name the notebook alone, or {CONVERT}",
            )
        skipped = read_notebook(path.read_bytes(), as_text(str(path))).skipped
    return Target(
        kind=TargetKind.FUNCTION if function else TargetKind.SCRIPT,
        # Show a link under its own name, as Python's tracebacks do.
        raw_path=os.fsencode(path.absolute()),
        raw_name=os.fsencode(path),
        label=as_text(text),
        function=function,
        raw_arguments=tuple(map(os.fsencode, arguments)),
        skipped=skipped,
    )


def _check_file(path: Path, text: str) -> None:
    # Unlike `Path.exists`, it raises nothing for broken links and overlong names.
    if not os.path.exists(path):  # noqa: PTH110
        from difflib import get_close_matches

        pattern = "*.ipynb" if is_notebook(path.name) else "*.py"
        names = {other.stem: other.name for other in path.parent.glob(pattern)}
        near = [names[stem] for stem in get_close_matches(path.stem, names)]
        hint = f"nearest there: {', '.join(near)}" if near else "check the path"
        raise ScriptError(f"there is no file {text!r}", hint=hint)
    if path.is_dir():
        raise ScriptError(
            f"{text!r} is a directory", hint="name the script in it, or a module with -m"
        )
    if path.suffix == ".json":
        raise ScriptError(
            f"{text!r} is no script",
            hint=f"to show a stored run: breakeven report {shlex.quote(text)}",
        )
    if not os.access(path, os.R_OK):
        raise ScriptError(f"{text!r} cannot be read", hint="check its permissions")


def _find_module(name: str, arguments: Sequence[str]) -> Target:
    # Find a module of the current folder as `python -m` does. Look only for the top-level package:
    # finding a submodule would import its parents, which must not happen here.
    top = name.partition(".")[0]
    has_local = Path(f"{top}.py").exists() or Path(top).is_dir()
    try:
        is_found = has_local or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        is_found = False
    if not is_found:
        raise ScriptError(
            f"there is no module {name!r}",
            hint="run from the folder that holds it, or name the script file without -m",
        )
    return Target(
        kind=TargetKind.MODULE,
        raw_path=os.fsencode(name),
        label=as_text(name),
        raw_arguments=tuple(map(os.fsencode, arguments)),
    )


@cache
def as_text(name: str) -> str:
    r"""Return a file name as valid Unicode, with ``\\xff`` for bytes that are not UTF-8."""
    try:
        return os.fsencode(name).decode(errors="backslashreplace")
    except UnicodeEncodeError:  # half of a pair of surrogates
        return name.encode(errors="backslashreplace").decode()

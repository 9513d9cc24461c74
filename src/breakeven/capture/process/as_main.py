"""Run a script or a module as ``__main__``, as the interpreter does for its command line."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

_OUR_FOLDER = f"{Path(__file__).resolve().parents[2]}{os.sep}"


def run_as_main(
    target: str,
    arguments: Sequence[str],
    *,
    is_module: bool,
    text: bytes | None = None,
    code_of: Callable[[bytes, str], CodeType | None] = lambda *_: None,
) -> None:
    """Run the target in a fresh ``__main__``, which stays: threads and ``atexit`` still need it.

    An exception ends the process with the traceback that plain Python shows, without our frames.

    Args:
        target: Path of the script as the user wrote it, or name of the module.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: The target is a module.
        text: Run this in place of the script's own text; None for its own.
        code_of: Returns what to run for a script's text and name; None for what the text says.
    """
    # As `python -m` has it until the module is found.
    sys.argv = ["-m" if is_module else target, *arguments]
    start = ["-m", target] if is_module else [target]
    sys.orig_argv = [sys.executable, *start, *arguments]
    main = fresh_main()
    try:
        if is_module:
            _set_first_path(str(Path.cwd()))
            # What `python -m` itself calls.
            runpy._run_module_as_main(target)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            put_folder_first(target)
            _run_file(target, main, text, code_of)
    except BaseException as error:
        steps = list(_steps(error.__traceback__))
        # Show all that led to a bug of ours, but not to a syntax error, two frames from here.
        if not (isinstance(error, Exception) and steps[2:] and _is_ours(steps[-1])):
            _hide_our_frames(steps)
        raise


def fresh_main() -> ModuleType:
    """Put an empty ``__main__`` in the place of the one that there is, and return it."""
    main = ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main
    return main


def put_folder_first(script: str) -> None:
    """Let a script's folder come first where modules are looked for, unless Python is told not to.

    Args:
        script: Its path; of a link, modules are beside the file itself.
    """
    _set_first_path(str(Path(script).resolve().parent))


def _set_first_path(folder: str) -> None:
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, folder)


def _run_file(
    path: str,
    main: ModuleType,
    text: bytes | None,
    code_of: Callable[[bytes, str], CodeType | None],
) -> None:
    # Not normalized: plain Python puts the two together as they are.
    file = path if Path(path).is_absolute() else f"{Path.cwd()}{os.sep}{path}"
    main.__dict__.update(
        __file__=file, __loader__=SourceFileLoader("__main__", file), __cached__=None
    )
    if text is None:
        with io.open_code(file) as source:
            text = source.read()
    code = code_of(text, file) or compile(text, file, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _hide_our_frames(steps: Sequence[TracebackType]) -> None:
    """Let the traceback of an unhandled exception be the user's; the interpreter prints it."""
    show, users = sys.excepthook, [one for one in steps if not _is_ours(one)]

    # By then the interpreter has added the frames that led here, which are left out.
    def show_users_frames(
        kind: type[BaseException], value: BaseException, _: TracebackType | None
    ) -> None:
        kept: TracebackType | None = None
        for one in reversed(users):
            kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
        show(kind, value.with_traceback(kept), kept)

    sys.excepthook = show_users_frames


def _steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_ours(step: TracebackType) -> bool:
    file = step.tb_frame.f_code.co_filename
    # Scripts that come with breakeven are run as a user's are.
    return file.startswith(_OUR_FOLDER) and f"{os.sep}scripts{os.sep}" not in file

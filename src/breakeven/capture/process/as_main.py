"""Run a script or a module as ``__main__``, as the interpreter does for its command line."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

_OUR_FOLDER = f"{Path(__file__).resolve().parents[2]}{os.sep}"


def run_as_main(
    target: str,
    arguments: Sequence[str],
    *,
    is_module: bool,
    code_of: Callable[[bytes, str], CodeType | None] = lambda *_: None,
) -> None:
    """Run the target in a fresh ``__main__``, which stays: threads and ``atexit`` still need it.

    An exception ends the process with the traceback that plain Python shows, without our frames.

    Args:
        target: Path of the script as the user wrote it, or name of the module.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: The target is a module.
        code_of: Returns the code to run for a script's text and name; None for its own.
    """
    # As `python -m` has it until the module is found.
    sys.argv = ["-m" if is_module else target, *arguments]
    start = ["-m", target] if is_module else [target]
    sys.orig_argv = [sys.executable, *start, *arguments]
    main = fresh_main()
    try:
        if is_module:
            _put_first(str(Path.cwd()))
            # What `python -m` itself calls.
            runpy._run_module_as_main(target)  # pyright: ignore[reportAttributeAccessIssue]
            return
        put_folder_first(target)
        # Not normalized: plain Python puts the two together as they are.
        file = target if Path(target).is_absolute() else f"{Path.cwd()}{os.sep}{target}"
        main.__dict__.update(
            __file__=file, __loader__=SourceFileLoader("__main__", file), __cached__=None
        )
        with io.open_code(file) as source:
            text = source.read()
        code = code_of(text, file) or compile(text, file, "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except BaseException as error:
        steps: list[TracebackType] = []
        step = error.__traceback__
        while step is not None:
            steps.append(step)
            step = step.tb_next
        # Show all that led to a bug of ours; but a syntax error is raised in this very frame.
        if not (isinstance(error, Exception) and steps[1:] and _is_ours(steps[-1])):
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
    _put_first(str(Path(script).resolve().parent))


def _put_first(folder: str) -> None:
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, folder)


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


def _is_ours(step: TracebackType) -> bool:
    file = step.tb_frame.f_code.co_filename
    # Scripts that come with breakeven are run as a user's are.
    return file.startswith(_OUR_FOLDER) and f"{os.sep}scripts{os.sep}" not in file

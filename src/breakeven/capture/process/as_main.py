"""Runs a script or a module as ``__main__``, like the interpreter's command line."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from breakeven.trace.events import CELL_LINES, is_notebook

_OUR_FOLDER = f"{Path(__file__).resolve().parents[2]}{os.sep}"


def run_as_main(
    target: str,
    arguments: Sequence[str],
    *,
    is_module: bool,
    code_of: Callable[[bytes, str], CodeType | None] = lambda *_: None,
) -> None:
    """Run the target in a fresh ``__main__``, which stays: threads and ``atexit`` still need it.

    An exception ends the process with plain Python's traceback, without our frames.

    Args:
        target: Path of the script as the user wrote it, or name of the module.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: Whether the target is a module.
        code_of: Returns the code to run for a script's text and name; None for the script's own.
    """
    # `python -m` shows this value until it finds the module.
    sys.argv = ["-m" if is_module else target, *arguments]
    start = ["-m", target] if is_module else [target]
    sys.orig_argv = [sys.executable, *start, *arguments]
    main = fresh_main()
    try:
        if is_module:
            _put_first(str(Path.cwd()))
            # The function behind `python -m`.
            runpy._run_module_as_main(target)  # pyright: ignore[reportAttributeAccessIssue]
            return
        put_folder_first(target)
        # Do not normalize: plain Python joins the two parts unchanged.
        file = target if Path(target).is_absolute() else f"{Path.cwd()}{os.sep}{target}"
        if is_notebook(target):
            _run_cells(Path(target).absolute(), main)
            return
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
        # Show all frames that led to our bug; but a syntax error is raised in this very frame.
        if not (isinstance(error, Exception) and steps[1:] and _is_ours(steps[-1])):
            _hide_our_frames(steps)
        raise


def _run_cells(path: Path, main: ModuleType) -> None:
    """Run the code cells of a notebook one after the other, as Jupyter does."""
    import __future__

    import ast
    import asyncio

    from breakeven.capture.location import keep_text
    from breakeven.source.notebook import read_notebook

    notebook, file = read_notebook(path.read_bytes(), path.name), str(path)
    keep_text(file, notebook.text)
    os.environ.setdefault("MPLBACKEND", "agg")  # `show` of a window would wait
    # Outside of IPython, there is no shell, and objects are shown as text.
    show = lambda *objects, **_: print(*objects)  # noqa: E731, T201
    main.__dict__.update(get_ipython=lambda: None, display=show)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    with closing(asyncio.Runner()) as loop:
        for number, cell in notebook.cells.items():
            padded = "\n" * (number * CELL_LINES) + cell
            code = compile(padded, file, "exec", flags, dont_inherit=True)
            # Cells inherit `from __future__ import annotations` from earlier ones.
            flags |= code.co_flags & __future__.annotations.compiler_flag
            if (result := eval(code, main.__dict__)) is not None:
                loop.run(result)


def fresh_main() -> ModuleType:
    """Replace ``__main__`` by an empty module, and return it."""
    main = ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main
    return main


def put_folder_first(script: str) -> None:
    """Put a script's folder first in ``sys.path``, unless ``PYTHONSAFEPATH`` is set.

    Args:
        script: Path of the script; a link counts as the file that it points to.
    """
    _put_first(str(Path(script).resolve().parent))


def _put_first(folder: str) -> None:
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, folder)


def _hide_our_frames(steps: Sequence[TracebackType]) -> None:
    """Hide our frames from the traceback that the interpreter prints for an unhandled exception."""
    show, users = sys.excepthook, [one for one in steps if not _is_ours(one)]

    # By then the interpreter has added the outer frames: leave them out.
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
    # Scripts shipped with breakeven run like the user's.
    return file.startswith(_OUR_FOLDER) and f"{os.sep}scripts{os.sep}" not in file

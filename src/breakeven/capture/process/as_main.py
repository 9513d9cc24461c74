"""Run a script or a module as ``__main__``, as the interpreter does for its command line.

And call back when it imports a library, before it goes on.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    BuiltinImporter,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

_OUR_FOLDER = f"{Path(__file__).resolve().parents[2]}{os.sep}"
# What runs on the way to the user's first line.
_MACHINERY = ("<frozen ", runpy.__file__, str(Path(__file__).resolve()))


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
        _hide_our_frames(error)
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
        set_aside_for(folder)


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


def _hide_our_frames(error: BaseException) -> None:
    """Let the traceback of an unhandled exception be the user's; the interpreter prints it."""
    found = list(_chain(error))
    first, show = _without_machinery(error.__traceback__), sys.excepthook
    if _is_our_bug(error):
        return

    def show_users_frames(
        kind: type[BaseException], value: BaseException, _: TracebackType | None
    ) -> None:
        traceback = _without_ours(first)
        # By now the interpreter has added our frames again.
        for cause in found:
            kept = traceback if cause is value else _without_ours(cause.__traceback__)
            cause.__traceback__ = kept
        show(kind, value, traceback)

    sys.excepthook = show_users_frames


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, and what it came from, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _without_machinery(traceback: TracebackType | None) -> TracebackType | None:
    """Return where the user's code begins; None where none of it ran."""
    steps = _steps(traceback)
    return next((one for one in steps if not _file_of(one).startswith(_MACHINERY)), None)


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of breakeven, such as of a watched optimizer."""
    kept: TracebackType | None = None
    for one in reversed([one for one in _steps(traceback) if not _is_ours(_file_of(one))]):
        kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept


def _is_our_bug(error: BaseException) -> bool:
    """Return whether an exception arose in our own code, and what led there is wanted."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return False
    *_, last = (None, *_steps(_without_machinery(error.__traceback__)))
    return last is not None and _is_ours(_file_of(last))


def _steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _file_of(step: TracebackType) -> str:
    return step.tb_frame.f_code.co_filename


def _is_ours(file: str) -> bool:
    # Scripts that come with breakeven are run as a user's are.
    return file.startswith(_OUR_FOLDER) and f"{os.sep}scripts{os.sep}" not in file


# Python has these before it looks into any folder, whatever lies beside a script.
_LOADED_AT_START = (BuiltinImporter, FrozenImporter)

# The folder that comes first for the script, and the modules whose names it has.
_folder = ""
_aside: dict[str, ModuleType] = {}


def set_aside_for(folder: str) -> None:
    """Forget the imported modules whose names ``folder`` has, so that its own are imported.

    Under plain Python a script's own ``statistics.py`` takes the place of Python's. Whoever has
    imported that already keeps it.

    Args:
        folder: Where modules are looked for first.
    """
    global _folder
    _folder = folder
    _aside.update(_take_out(_folder))


@contextmanager
def put_back() -> Iterator[None]:
    """Let breakeven import inside what it needs, and nothing of the script's own by that name."""
    path, of_script = sys.path[:], _take_out(_folder, also_its_own=True)
    sys.modules.update(_aside)
    sys.path[:] = [entry for entry in path if entry != _folder]
    try:
        yield
    finally:
        sys.path[:] = path
        _aside.update(_take_out(_folder))
        sys.modules.update(of_script)


def _take_out(folder: str, *, also_its_own: bool = False) -> dict[str, ModuleType]:
    """Remove the modules that have the names of a folder's from those that are imported."""
    if not folder:
        return {}
    try:
        stems = {file.name.partition(".")[0] for file in Path(folder).iterdir()}
    except OSError:  # it may be searched, but not listed
        return {}
    names = {
        stem
        for stem in stems & sys.modules.keys()
        if _stands_aside(sys.modules[stem], stem, folder, also_its_own=also_its_own)
    }
    return {
        name: sys.modules.pop(name)
        for name in tuple(sys.modules)
        if name.partition(".")[0] in names
    }


def _stands_aside(module: ModuleType, name: str, folder: str, *, also_its_own: bool) -> bool:
    is_at_start = getattr(getattr(module, "__spec__", None), "loader", None) in _LOADED_AT_START
    if name in ("__main__", "encodings") or is_at_start:
        return False
    spec = PathFinder.find_spec(name, [folder])
    if spec is None or spec.origin is None:  # a folder of data by chance
        return False
    file = getattr(module, "__file__", None)
    is_its_own = file is not None and os.path.realpath(file) == os.path.realpath(spec.origin)
    return also_its_own or not is_its_own


_Callback = Callable[[ModuleType], None]


def call_after_import(callbacks: Mapping[str, _Callback]) -> None:
    """Call each of ``callbacks`` once, when the module that it is for has been imported.

    Args:
        callbacks: By the full name of their module, none of which is imported yet; called with the
            module before who imports it goes on.
    """
    sys.meta_path.insert(0, _AfterImport(callbacks))


class _AfterImport(MetaPathFinder):
    """Finds modules as everybody else does, and has those that are waited for call back."""

    def __init__(self, callbacks: Mapping[str, _Callback]) -> None:
        self._callbacks = dict(callbacks)
        self._looked_for: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module that calls back; None for all other modules."""
        if fullname not in self._callbacks or fullname in self._looked_for:
            return None
        self._looked_for.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looked_for.remove(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute = loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            del loader.exec_module
            # Only now, since libraries look for it first without importing it.
            callback = self._callbacks.pop(fullname, None)
            if not self._callbacks and self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            if callback is not None:
                callback(module)

        loader.exec_module = execute_and_call
        return spec

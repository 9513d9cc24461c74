"""Let Python's own functions write to copies of files, where the system offers nothing better.

What opens files by itself, as programs that a script starts and most libraries in C do, is not
seen; those that write what training writes (torch, safetensors, SQLite) are led too.
"""

from __future__ import annotations

import builtins
import errno
import functools
import importlib
import os
import shutil
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from breakeven.capture.protect.redirected_paths import RedirectedPaths

_Function = Callable[..., Any]

# Functions of os, by where the path leads that is their first argument: a method of
# `RedirectedPaths`. Some are not everywhere.
_LED = {
    "read": ("access", "chdir", "getxattr", "listxattr", "lstat", "readlink", "stat", "statvfs"),
    "change": ("chmod", "chown", "lchown", "removexattr", "setxattr", "truncate", "utime"),
    "create": ("mkdir", "mkfifo", "mknod"),
}
# Those that do more than to follow a path: a method below.
_REPLACED = {
    "link": "_linking", "listdir": "_listing", "open": "_opening", "remove": "_deleting",
    "rename": "_moving", "replace": "_moving", "rmdir": "_deleting", "scandir": "_scanning",
    "symlink": "_symlinking", "unlink": "_deleting",
}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
# They hold the functions themselves, and not what a script sees of them.
_UNTOUCHED = frozenset({"posix", "nt", "_io", "_pyio"})


class _Guard(threading.local):
    """Whether this thread is within a function that is led already."""

    is_inside = False


_guard = _Guard()


class RedirectedFiles:
    """Replaces the functions of this process by ones that follow `RedirectedPaths`, for good.

    Args:
        folder: Holds the copies.
        passed: Folders whose files are written themselves.
    """

    def __init__(self, folder: Path, passed: Sequence[Path]) -> None:
        self._paths = RedirectedPaths(folder, passed)

    def enter(self) -> None:
        """Replace the functions, in this process and in those that it forks."""
        paths = self._paths
        led = [(os, name, _led(getattr(paths, to))) for to, names in _LED.items() for name in names]
        replaced = [(os, name, getattr(self, method)) for name, method in _REPLACED.items()]
        others = [(builtins, "open", self._file_opening), (sqlite3, "connect", _led(paths.change))]
        changes: dict[int, tuple[_Function, _Function]] = {}
        for owner, name, wrap in [*led, *replaced, *others]:
            original = getattr(owner, name, None)
            if original is not None:
                changes[id(original)] = (original, _outermost(original, wrap(original)))
        for name, module in sys.modules.copy().items():
            if name not in _UNTOUCHED and module is not None:
                _replace_all(vars(module), changes)
        # By paths, not by descriptors of folders.
        shutil._use_fd_functions = False  # pyright: ignore[reportAttributeAccessIssue]
        core: Any = torch._C
        # Their calls are not guarded, but asking where they lead must be.
        read, replace = (_outermost(lead, lead) for lead in (paths.read, paths.replace))
        core.PyTorchFileWriter = _led_class(core.PyTorchFileWriter, replace)
        core.PyTorchFileReader = _led_class(core.PyTorchFileReader, read)
        try:
            library: Any = importlib.import_module("safetensors")
        except ImportError:
            return
        serialize = library.serialize_file

        def serialize_file(tensors: Any, filename: Any, *rest: Any, **named: Any) -> Any:
            return serialize(tensors, _apply(replace, filename), *rest, **named)

        library.serialize_file = serialize_file
        library.safe_open = _led(read)(library.safe_open)

    def _file_opening(self, original: _Function) -> _Function:
        def open_file(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            return original(_apply(self._by_mode(mode), file), mode, *rest, **named)

        return open_file

    def _by_mode(self, mode: str) -> Callable[[str], str]:
        if "x" in mode:
            return self._paths.create
        if "w" in mode:
            return self._paths.replace
        return self._paths.change if "a" in mode or "+" in mode else self._paths.read

    def _opening(self, original: _Function) -> _Function:
        def open_descriptor(
            path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
        ) -> int:
            if not flags & _WRITES:
                lead = self._paths.read
            elif flags & os.O_CREAT and flags & os.O_EXCL:
                lead = self._paths.create
            else:
                lead = self._paths.replace if flags & os.O_TRUNC else self._paths.change
            return original(_apply(lead, path, dir_fd), flags, mode)

        return open_descriptor

    def _deleting(self, original: _Function) -> _Function:
        is_folder = original is os.rmdir

        def delete(path: Any, *, dir_fd: int | None = None) -> None:
            name = _absolute(path, dir_fd)
            if self._paths.is_passed(name):
                return original(name)
            is_real, is_copy = self._paths.is_real(name), self._paths.is_copy(name)
            if is_folder and (is_real or is_copy) and self._paths.names(name):
                raise _error(errno.ENOTEMPTY, path)
            if is_copy:
                original(self._paths.read(name))
            elif not is_real:
                raise _error(errno.ENOENT, path)
            elif stat.S_ISDIR(os.lstat(name).st_mode) != is_folder:
                raise _error(errno.ENOTDIR if is_folder else errno.EISDIR, path)
            if is_real:
                self._paths.delete(name)
            return None

        return delete

    def _moving(self, original: _Function) -> _Function:
        def move(
            src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
        ) -> None:
            old, new = _absolute(src, src_dir_fd), _absolute(dst, dst_dir_fd)
            found, there = self._paths.read(old), self._paths.read(new)
            is_folder = os.path.isdir(found)
            if not os.path.lexists(found):
                raise _error(errno.ENOENT, src)
            if os.path.isdir(there) and not is_folder:
                raise _error(errno.EISDIR, dst)
            if is_folder and os.path.isdir(there) and self._paths.names(new):
                raise _error(errno.ENOTEMPTY, dst)
            if self._paths.is_passed(old):
                return original(found, self._paths.replace(new))
            if is_folder:
                with _let_through():
                    shutil.copytree(old, new, symlinks=True, dirs_exist_ok=True)
                    shutil.rmtree(old)
                return None
            copy = self._paths.replace(new)
            if self._paths.is_copy(old):
                original(found, copy)
            else:
                shutil.copy2(found, copy, follow_symlinks=False)
            if self._paths.is_real(old):
                self._paths.delete(old)
            return None

        return move

    def _linking(self, original: _Function) -> _Function:
        def link(src: Any, dst: Any, **named: Any) -> None:
            found = self._paths.read(_absolute(src, named.get("src_dir_fd")))
            new = self._paths.create(_absolute(dst, named.get("dst_dir_fd")))
            if os.path.lexists(new):
                raise _error(errno.EEXIST, dst)
            shutil.copy2(found, new)

        return link

    def _symlinking(self, original: _Function) -> _Function:
        def symlink(src: Any, dst: Any, *rest: Any, dir_fd: int | None = None) -> None:
            original(src, self._paths.create(_absolute(dst, dir_fd)), *rest)

        return symlink

    def _listing(self, original: _Function) -> _Function:
        def listdir(path: Any = ".") -> list[Any]:
            if isinstance(path, int):
                return original(path)
            names = list(self._paths.names(_absolute(path)))
            return [os.fsencode(name) for name in names] if _is_bytes(path) else names

        return listdir

    def _scanning(self, original: _Function) -> _Function:
        def scandir(path: Any = ".") -> Any:
            if isinstance(path, int):
                return original(path)
            name = "." if path is None else os.fspath(path)
            return _Entries(original, os.fspath(name), self._paths.names(_absolute(name)))

        return scandir


class _Entries:
    """What ``os.scandir`` returns, of a folder whose entries lie in several places."""

    def __init__(self, scandir: _Function, path: Any, places: dict[str, str]) -> None:
        folders = {os.path.dirname(place) for place in places.values()}
        entries = (entry for folder in folders for entry in scandir(folder))
        found = (entry for entry in entries if places.get(entry.name) == entry.path)
        self._entries = iter([_Entry(path, entry) for entry in found])

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Yield nothing more."""
        self._entries = iter(())


class _Entry:
    """A ``DirEntry`` under the path that the script knows."""

    def __init__(self, folder: Any, entry: os.DirEntry[str]) -> None:
        self._entry = entry
        self.name: Any = os.fsencode(entry.name) if _is_bytes(folder) else entry.name
        self.path: Any = os.path.join(folder, self.name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


def _outermost(original: _Function, replacement: _Function) -> _Function:
    """Return the replacement for all calls but its own, and those of what it calls."""

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        if _guard.is_inside:
            return original(*arguments, **named)
        _guard.is_inside = True
        try:
            return replacement(*arguments, **named)
        except OSError as error:
            # As the script wrote it, which does not know of our folder.
            if error.filename is not None and arguments:
                error.filename = arguments[0]
            raise
        finally:
            _guard.is_inside = False

    return call


@contextmanager
def _let_through() -> Iterator[None]:
    """Let the functions called inside be led as those of the script are."""
    _guard.is_inside = False
    try:
        yield
    finally:
        _guard.is_inside = True


def _led(lead: Callable[[str], str]) -> Callable[[_Function], _Function]:
    """Return what makes a function follow ``lead`` with its first argument."""

    def wrap(original: _Function) -> _Function:
        def call(path: Any, *rest: Any, **named: Any) -> Any:
            return original(_apply(lead, path, named.pop("dir_fd", None)), *rest, **named)

        return call

    return wrap


def _led_class(original: type, lead: Callable[[str], str]) -> type:
    """Return a class whose first argument follows ``lead``."""

    def create(self: Any, file: Any, *rest: Any, **named: Any) -> None:
        original.__init__(self, _apply(lead, file), *rest, **named)

    return type(original.__name__, (original,), {"__init__": create})


def _apply(lead: Callable[[str], str], path: Any, dir_fd: int | None = None) -> Any:
    """Return where a path leads; what is none, such as an open file, stays as it is."""
    if not isinstance(path, str | bytes | os.PathLike) or not path:
        return path
    if dir_fd is None and path == ":memory:":
        return path
    led = lead(_absolute(path, dir_fd) if dir_fd is not None else os.fsdecode(path))
    return os.fsencode(led) if _is_bytes(path) else led


def _absolute(path: Any, dir_fd: int | None = None) -> str:
    name = os.fsdecode(path)
    if dir_fd is None or os.path.isabs(name):
        return os.path.abspath(name)
    try:
        return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
    except OSError:
        raise _error(errno.EPERM, path) from None


def _replace_all(
    namespace: dict[str, Any], changes: dict[int, tuple[_Function, _Function]]
) -> None:
    for name, value in list(namespace.items()):
        found = changes.get(id(value))
        if found is not None and found[0] is value:
            namespace[name] = found[1]


def _is_bytes(path: Any) -> bool:
    return isinstance(os.fspath(path), bytes)


def _error(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), path)

"""Redirects Python's own functions to copies of files, on systems without an overlay.

The layout is that of an overlay: a copy of each written file, under the same path below a folder,
and a list of deleted files. torch, safetensors and SQLite are redirected too. Other code that opens
files itself is not: programs that a script starts, and most C libraries.
"""

from __future__ import annotations

import builtins
import errno
import functools
import importlib
import mmap
import os
import shutil
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from breakeven.capture.target import as_text
from breakeven.trace import FileChange, FileWrite

_Function = Callable[..., Any]
_Redirect = Callable[[str], str]

_NO_FILES = ("/dev", "/proc", "/sys")
_UPPER = "upper"
_DELETED = "deleted"
# Functions of os whose first argument is redirected, by method of `RedirectedFiles`. Some systems
# lack some of them.
_REDIRECTED = {
    "read": ("access", "chdir", "getxattr", "listxattr", "lstat", "readlink", "stat", "statvfs"),
    "change": ("chmod", "chown", "lchown", "removexattr", "setxattr", "truncate", "utime"),
    "create": ("mkdir", "mkfifo", "mknod"),
}
# Functions that need more than a redirected path, with the method that makes the replacement.
_REPLACED = {
    "listdir": "_listing", "open": "_opening", "remove": "_deleting",
    "rename": "_moving", "replace": "_moving", "rmdir": "_deleting", "scandir": "_scanning",
    "symlink": "_symlinking", "unlink": "_deleting",
}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
# These modules define the functions themselves; scripts see them through others.
_UNTOUCHED = frozenset({"posix", "nt", "_io", "_pyio"})


class _Guard(threading.local):
    """Whether this thread is inside a redirected function."""

    is_inside = False


_guard = _Guard()


class RedirectedFiles:
    """Permanently replaces this process's file functions by ones that use copies.

    Args:
        folder: Folder for the copies.
        passed: Folders in which the script writes to the files themselves.
    """

    def __init__(self, folder: Path, passed: Sequence[Path]) -> None:
        self._upper = str(folder / _UPPER)
        self._journal = str(folder / _DELETED)
        os.makedirs(self._upper)
        self._passed = tuple(
            os.path.realpath(each) for each in (*passed, folder, *map(Path, _NO_FILES))
        )
        self._deleted: set[str] = set()
        self._parents: dict[str, str] = {}
        # Shared with the script's forked processes: without a write, no lookup is needed.
        self._has_written = mmap.mmap(-1, 1)

    def enter(self) -> None:
        """Replace the functions in this process and in those that it forks."""
        import torch  # a process that only reads another one's writes has not imported it

        makers: list[tuple[Any, str, Callable[[_Function], _Function]]] = [
            (builtins, "open", self._file_opening),
            (sqlite3, "connect", _redirected(self.change)),
            *((os, name, getattr(self, method)) for name, method in _REPLACED.items()),
        ]
        for method, names in _REDIRECTED.items():
            makers += [(os, name, _redirected(getattr(self, method))) for name in names]
        changes: dict[int, tuple[_Function, _Function]] = {}
        for owner, name, make in makers:
            original = getattr(owner, name, None)
            if original is not None:
                changes[id(original)] = (original, _not_reentrant(original, make(original)))
        for module_name, module in sys.modules.copy().items():
            if module_name in _UNTOUCHED or module is None:
                continue
            namespace = vars(module)
            for name, value in list(namespace.items()):
                found = changes.get(id(value))
                if found is not None and found[0] is value:
                    namespace[name] = found[1]
        # Make shutil use paths, not descriptors of folders.
        shutil._use_fd_functions = False  # pyright: ignore[reportAttributeAccessIssue]
        core: Any = torch._C
        # Calls of these classes are not guarded, but the path lookup must be.
        read, replace = (_not_reentrant(lead, lead) for lead in (self.read, self.replace))
        core.PyTorchFileWriter = _redirected_class(core.PyTorchFileWriter, replace)
        core.PyTorchFileReader = _redirected_class(core.PyTorchFileReader, read)
        try:
            library: Any = importlib.import_module("safetensors")
        except ImportError:
            return
        serialize = library.serialize_file

        def serialize_file(tensors: Any, filename: Any, *rest: Any, **named: Any) -> Any:
            return serialize(tensors, _follow(replace, filename), *rest, **named)

        library.serialize_file = serialize_file
        library.safe_open = _redirected(read)(library.safe_open)

    def read(self, path: str) -> str:
        """Return the path at which to read the file."""
        if not self._has_written[0]:
            return path
        real = self._real(path)
        if self._is_passed(real):
            return path
        copy = self._copy(real)
        return copy if os.path.lexists(copy) or self._is_deleted(real) else real

    def change(self, path: str, *, with_content: bool = True) -> str:
        """Return the path at which to write the file with its present content.

        Args:
            path: Path of the file or folder, which need not exist.
            with_content: Whether the write keeps a part of the content.
        """
        real = self._real(path)
        if self._is_passed(real):
            return path
        copy = self._copy(real)
        if os.path.lexists(copy):
            return copy
        is_there = self._is_real(real)
        if os.path.exists(real) and not (os.path.isfile(real) or os.path.isdir(real)):
            return path  # a pipe or a device
        self._has_written[0] = 1
        self._copy_folder(os.path.dirname(real))
        if is_there and os.path.isdir(real):
            self._copy_folder(real)
        elif is_there and with_content and os.path.exists(real):
            shutil.copy2(real, copy)
        return copy

    def replace(self, path: str) -> str:
        """Return the path at which to replace a file's content."""
        return self.change(path, with_content=False)

    def create(self, path: str) -> str:
        """Return the path at which to create a file that must not exist."""
        found = self.read(path)
        return found if os.path.lexists(found) else self.change(path)

    def _delete(self, real: str) -> None:
        """Note a path and all below it as deleted; its copy is deleted already."""
        self._has_written[0] = 1
        self._deleted.add(real)
        with open(self._journal, "ab") as journal:
            journal.write(os.fsencode(real) + b"\0")

    def _names(self, path: str) -> dict[str, str]:
        """Return the path at which to read each entry of a folder, by name."""
        real = self._real(path)
        copy, found = self._copy(real), dict[str, str]()
        if not self._is_deleted(real):
            is_only_copy = not os.path.isdir(real) and os.path.isdir(copy)
            names = [] if is_only_copy else os.listdir(real)
            places = {name: os.path.join(real, name) for name in names}
            found = {name: place for name, place in places.items() if place not in self._deleted}
        elif not os.path.isdir(copy):
            os.listdir(copy)  # raises the right error
        if os.path.isdir(copy):
            found |= {name: os.path.join(copy, name) for name in os.listdir(copy)}
        return found

    def _copy_folder(self, real: str) -> None:
        """Create a folder's copy if the folder exists."""
        copy = self._copy(real)
        if os.path.isdir(copy) or not os.path.isdir(real) or self._is_deleted(real):
            return
        self._copy_folder(os.path.dirname(real))
        os.mkdir(copy)
        shutil.copystat(real, copy)

    def _real(self, path: str) -> str:
        absolute = os.path.abspath(path)
        if absolute.startswith(self._upper + os.sep):  # the current folder is a copy
            absolute = _real_path(Path(absolute).relative_to(self._upper))
        parent, name = os.path.split(absolute)
        known = self._parents.get(parent)
        if known is None:
            known = self._parents[parent] = os.path.realpath(parent)
        return os.path.join(known, name)

    def _copy(self, real: str) -> str:
        return os.path.join(self._upper, _below(real))

    def _is_passed(self, real: str) -> bool:
        return any(real == each or real.startswith(each + os.sep) for each in self._passed)

    def _is_real(self, real: str) -> bool:
        """Return whether a path exists apart from copies, and is not deleted."""
        return os.path.lexists(real) and not self._is_deleted(real)

    def _is_deleted(self, real: str) -> bool:
        parents = map(str, Path(real).parents) if self._deleted else ()
        return real in self._deleted or not self._deleted.isdisjoint(parents)

    def _file_opening(self, original: _Function) -> _Function:
        def open_file(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            lead = self.change if "a" in mode or "+" in mode else self.read
            if "x" in mode:
                lead = self.create
            elif "w" in mode:
                lead = self.replace
            return original(_follow(lead, file), mode, *rest, **named)

        return open_file

    def _opening(self, original: _Function) -> _Function:
        def open_descriptor(
            path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
        ) -> int:
            lead = self.replace if flags & os.O_TRUNC else self.change
            if not flags & _WRITES:
                lead = self.read
            elif flags & os.O_CREAT and flags & os.O_EXCL:
                lead = self.create
            return original(_follow(lead, path, dir_fd), flags, mode)

        return open_descriptor

    def _deleting(self, original: _Function) -> _Function:
        is_folder = original is os.rmdir

        def delete(path: Any, *, dir_fd: int | None = None) -> None:
            name = _absolute(path, dir_fd)
            real = self._real(name)
            if self._is_passed(real):
                return original(name)
            is_real, is_copy = self._is_real(real), os.path.lexists(self._copy(real))
            if is_folder and (is_real or is_copy) and self._names(name):
                raise _error(errno.ENOTEMPTY, path)
            if is_copy:
                original(self._copy(real))
            elif not is_real:
                raise _error(errno.ENOENT, path)
            elif stat.S_ISDIR(os.lstat(name).st_mode) != is_folder:
                raise _error(errno.ENOTDIR if is_folder else errno.EISDIR, path)
            if is_real:
                self._delete(real)
            return None

        return delete

    def _moving(self, original: _Function) -> _Function:
        def move(
            src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
        ) -> None:
            old, new = _absolute(src, src_dir_fd), _absolute(dst, dst_dir_fd)
            real, found, there = self._real(old), self.read(old), self.read(new)
            is_folder = os.path.isdir(found)
            if not os.path.lexists(found):
                raise _error(errno.ENOENT, src)
            if os.path.isdir(there) and not is_folder:
                raise _error(errno.EISDIR, dst)
            if is_folder and os.path.isdir(there) and self._names(new):
                raise _error(errno.ENOTEMPTY, dst)
            if self._is_passed(real):
                return original(found, self.replace(new))
            if is_folder:
                with _reentrant():
                    shutil.copytree(old, new, symlinks=True, dirs_exist_ok=True)
                    shutil.rmtree(old)
                return None
            copy = self.replace(new)
            if os.path.lexists(self._copy(real)):
                original(found, copy)
            else:
                shutil.copy2(found, copy, follow_symlinks=False)
            if self._is_real(real):
                self._delete(real)
            return None

        return move

    def _symlinking(self, original: _Function) -> _Function:
        def symlink(src: Any, dst: Any, *rest: Any, dir_fd: int | None = None) -> None:
            original(src, self.create(_absolute(dst, dir_fd)), *rest)

        return symlink

    def _listing(self, original: _Function) -> _Function:
        def listdir(path: Any = ".") -> list[Any]:
            if isinstance(path, int):
                return original(path)
            names = list(self._names(_absolute(path)))
            return [os.fsencode(name) for name in names] if _is_bytes(path) else names

        return listdir

    def _scanning(self, original: _Function) -> _Function:
        def scandir(path: Any = ".") -> Any:
            if isinstance(path, int):
                return original(path)
            name = "." if path is None else os.fspath(path)
            places = self._names(_absolute(name))
            folders = {os.path.dirname(place) for place in places.values()}
            entries = (entry for folder in folders for entry in original(folder))
            return _Entries(_Entry(name, e) for e in entries if places.get(e.name) == e.path)

        return scandir


class _Entries(AbstractContextManager[Any], Iterator["_Entry"]):
    """Return value of ``os.scandir`` for a folder whose entries are in several places."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._entries = iter(list(entries))

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the remaining entries."""
        self._entries = iter(())


class _Entry:
    """A ``DirEntry`` under the path that the script uses."""

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


def _not_reentrant(original: _Function, replacement: _Function) -> _Function:
    """Return the replacement for all calls except those from within a replacement."""

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        if _guard.is_inside:
            return original(*arguments, **named)
        _guard.is_inside = True
        try:
            return replacement(*arguments, **named)
        except OSError as error:
            # Show the path that the script wrote, not the one in our folder.
            if error.filename is not None and arguments:
                error.filename = arguments[0]
            raise
        finally:
            _guard.is_inside = False

    return call


@contextmanager
def _reentrant() -> Iterator[None]:
    """Inside, redirect called functions like those that the script calls."""
    _guard.is_inside = False
    try:
        yield
    finally:
        _guard.is_inside = True


def _redirected(lead: _Redirect) -> Callable[[_Function], _Function]:
    """Return a decorator that applies ``lead`` to a function's first argument."""

    def wrap(original: _Function) -> _Function:
        def call(path: Any, *rest: Any, **named: Any) -> Any:
            return original(_follow(lead, path, named.pop("dir_fd", None)), *rest, **named)

        return call

    return wrap


def _redirected_class(original: type, lead: _Redirect) -> type:
    """Return a class that applies ``lead`` to its first argument."""

    def create(self: Any, file: Any, *rest: Any, **named: Any) -> None:
        original.__init__(self, _follow(lead, file), *rest, **named)

    return type(original.__name__, (original,), {"__init__": create})


def _follow(lead: _Redirect, path: Any, dir_fd: int | None = None) -> Any:
    """Return the redirected path; other arguments, such as an open file, stay unchanged."""
    if not isinstance(path, str | bytes | os.PathLike) or not path:
        return path
    if dir_fd is None and path == ":memory:":
        return path
    found = lead(_absolute(path, dir_fd) if dir_fd is not None else os.fsdecode(path))
    return os.fsencode(found) if _is_bytes(path) else found


def _absolute(path: Any, dir_fd: int | None = None) -> str:
    name = os.fsdecode(path)
    if dir_fd is None or os.path.isabs(name):
        return os.path.abspath(name)
    try:
        return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
    except OSError:
        raise _error(errno.EPERM, path) from None


def _is_bytes(path: Any) -> bool:
    return isinstance(os.fspath(path), bytes)


def _error(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), path)


def redirected_writes(folder: Path) -> Iterator[FileWrite]:
    """Yield the files that a run created, changed or deleted.

    Args:
        folder: Folder with the copies of a run whose processes have ended.
    """
    upper = folder / _UPPER
    for place, folders, names in os.walk(upper):
        real = _real_path(Path(place).relative_to(upper))
        if not folders and not names and place != str(upper) and not os.path.lexists(real):
            yield FileWrite(path=as_text(real), change=FileChange.CREATED)
        for name in names:
            copy = Path(place, name)
            real = _real_path(copy.relative_to(upper))
            change = FileChange.CHANGED if os.path.lexists(real) else FileChange.CREATED
            size = copy.lstat().st_size
            yield FileWrite(path=as_text(real), change=change, num_bytes=size)
    journal = folder / _DELETED
    deleted = journal.read_bytes().split(b"\0")[:-1] if journal.exists() else []
    for real in map(os.fsdecode, dict.fromkeys(deleted)):
        if os.path.lexists(real) and not (upper / _below(real)).exists():
            yield FileWrite(path=as_text(real), change=FileChange.DELETED)


def _below(real: str) -> str:
    """Return the path of a file's copy, relative to the folder of copies."""
    drive, rest = os.path.splitdrive(real)
    return os.path.join(drive.rstrip(":"), rest.lstrip(os.sep))


def _real_path(below: Path) -> str:
    if os.name == "nt":
        return str(Path(f"{below.parts[0]}:{os.sep}", *below.parts[1:]))
    return os.path.join(os.sep, below)

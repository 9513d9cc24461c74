"""Take back what a run writes through Python, where the system offers no layer over its files.

An audit hook sees what Python's functions are about to do to a file, and notes in a journal how to
undo it, with a copy of what was there. After the run the journal is undone from its end. What
programs and libraries write past Python is not seen, but for what training writes: torch,
safetensors, SQLite. Source: https://docs.python.org/3/library/audit_events.html.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from breakeven.capture.target import as_text
from breakeven.trace import FileChange, FileWrite

_JOURNAL, _COPIES = "journal", "copies"
_NO_FILES = ("/dev", "/proc", "/sys")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
# Events by what they do to the path that is their first argument, with the place of the descriptor
# of the folder that it is relative to; 0 where there is none.
_CHANGES = {
    "os.chmod": 2, "os.chown": 3, "os.remove": 1, "os.rmdir": 1, "os.setxattr": 0,
    "os.truncate": 0, "os.utime": 3, "sqlite3.connect": 0,
}  # fmt: skip
# What SQLite keeps beside a database. Source: https://www.sqlite.org/tempfiles.html
_OF_SQLITE = ("-journal", "-wal", "-shm")
# The path that is made is the second argument.
_MAKES_SECOND = {"os.link": 3, "os.symlink": 2}


class GuardedFiles:
    """Notes what this process does to files, and those that it forks, so that it can be undone.

    Args:
        folder: Holds the journal and the copies.
        passed: Folders whose files are written for good.
    """

    def __init__(self, folder: Path, passed: Sequence[Path]) -> None:
        self._folder = folder
        (folder / _COPIES).mkdir(parents=True)
        self._passed = tuple(
            os.path.realpath(each) for each in (*passed, folder, *map(Path, _NO_FILES))
        )
        # What is at these paths is the run's own, or has a copy.
        self._noted: set[str] = set()
        self._folders: set[str] = set()  # whose times are noted
        self._num_copies = 0
        self._here = threading.local()

    def enter(self) -> None:
        """Look at all that follows, for good."""
        sys.addaudithook(self._hear)
        if not os.path.isdir("/proc/self/fd"):  # nothing tells which folder a descriptor is of
            shutil._use_fd_functions = False  # pyright: ignore[reportAttributeAccessIssue]
        core: Any = importlib.import_module("torch")._C
        core.PyTorchFileWriter = type(
            "PyTorchFileWriter", (core.PyTorchFileWriter,),
            {"__init__": self._noting(core.PyTorchFileWriter.__init__, 1)},
        )  # fmt: skip
        with suppress(ImportError):
            library: Any = importlib.import_module("safetensors")
            library.serialize_file = self._noting(library.serialize_file, 1)

    def _noting(self, function: Callable[..., Any], place: int) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if len(arguments) > place:
                self._hear("open", (arguments[place], "w", os.O_CREAT))
            return function(*arguments, **named)

        return call

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if getattr(self._here, "is_noting", False):
            return
        if event == "open":
            is_writing = isinstance(arguments[2], int) and arguments[2] & _WRITES
            places = ((0, 0),) if is_writing else ()
        elif event in _CHANGES:
            places = ((0, _CHANGES[event]),)
        elif event in _MAKES_SECOND:
            places = ((1, _MAKES_SECOND[event]),)
        elif event == "os.mkdir":
            places = ((0, 2),)
        elif event == "os.rename":
            places = ((0, 2), (1, 3))
        else:
            return
        self._here.is_noting = True
        try:
            paths = [_real_path(arguments, *place) for place in places]
            if event == "open":  # it follows links
                paths = [os.path.realpath(path) for path in paths if path]
            if event == "sqlite3.connect":
                paths += [f"{path}{suffix}" for path in paths if path for suffix in _OF_SQLITE]
            found = [path for path in paths if path and not self._is_passed(path)]
            if event == "os.rename" and len(found) == 2:
                self._note_move(*found)
            else:
                for path in found:
                    self._note(path, is_leaving=event == "os.remove")
        finally:
            self._here.is_noting = False

    def _note_move(self, old: str, new: str) -> None:
        if not os.path.lexists(old):
            return
        if os.path.lexists(new):
            self._note(new, is_leaving=True)
        self._write(kind="moved", path=old, to=new)
        # Paths name other files from now on.
        if os.path.isdir(old):
            self._noted.clear()
        elif old in self._noted:
            self._noted.remove(old)
            self._noted.add(new)
        else:
            self._noted.discard(new)

    def _note(self, path: str, *, is_leaving: bool = False) -> None:
        """Note what is at a path, before it changes; where it leaves it, keep the file itself."""
        if path in self._noted or not os.path.isdir(os.path.dirname(path)):
            return
        self._noted.add(path)
        if not os.path.lexists(path):
            self._write(kind="created", path=path)
            return
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            self._write(kind="folder", path=path, facts=_facts(path))
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            self._num_copies += 1
            copy = self._folder / _COPIES / f"{os.getpid()}-{self._num_copies}"
            self._write(
                kind="kept", path=path, copy=str(copy), facts=_facts(path), is_file=is_leaving
            )
            with suppress(OSError):  # on another file system
                if is_leaving:
                    os.link(path, copy, follow_symlinks=False)
            if not os.path.lexists(copy):
                shutil.copy2(path, copy, follow_symlinks=False)

    def _write(self, **entry: Any) -> None:
        for folder in {os.path.dirname(entry[key]) for key in ("path", "to") if key in entry}:
            if folder not in self._folders and os.path.isdir(folder):
                self._folders.add(folder)
                self._write(kind="folder", path=folder, facts=_facts(folder))
        with open(self._folder / _JOURNAL, "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(json.dumps(entry) + "\n")

    def _is_passed(self, path: str) -> bool:
        return any(path == each or path.startswith(each + os.sep) for each in self._passed)


def guarded_writes(folder: Path) -> Iterator[FileWrite]:
    """Yield the files that a run created, changed or deleted, before that is undone.

    Args:
        folder: Of a run whose processes are gone.
    """
    seen: set[str] = set()
    for entry in _entries(folder):
        path, kind = entry["path"], entry["kind"]
        if path in seen:
            continue
        seen.add(path)
        is_there = os.path.lexists(path)
        if kind == "moved" and entry["to"] not in seen and os.path.lexists(entry["to"]):
            seen.add(entry["to"])
            size = os.lstat(entry["to"]).st_size
            yield FileWrite(path=as_text(entry["to"]), change=FileChange.CREATED, num_bytes=size)
        if kind in ("kept", "moved") and not is_there:
            yield FileWrite(path=as_text(path), change=FileChange.DELETED)
        elif kind == "created" and is_there and not (os.path.isdir(path) and os.listdir(path)):
            size = 0 if os.path.isdir(path) else os.lstat(path).st_size
            yield FileWrite(path=as_text(path), change=FileChange.CREATED, num_bytes=size)
        elif kind == "kept" and not _is_same(path, entry["copy"]):
            size = os.lstat(path).st_size
            yield FileWrite(path=as_text(path), change=FileChange.CHANGED, num_bytes=size)


def take_back_all(folder: Path) -> None:
    """Undo what runs did to files that ended with the process that had begun them.

    Args:
        folder: Holds those of the runs.
    """
    for journal in folder.glob(f"*/{_JOURNAL}"):
        take_back(journal.parent)


def take_back(folder: Path) -> None:
    """Undo what a run did to files, as far as its journal tells.

    Args:
        folder: Of a run whose processes are gone.
    """
    for entry in reversed(list(_entries(folder))):
        path, kind = entry["path"], entry["kind"]
        with suppress(OSError):
            if kind == "created":
                is_folder = os.path.isdir(path) and not os.path.islink(path)
                os.rmdir(path) if is_folder else os.unlink(path)
            elif kind == "moved":
                os.rename(entry["to"], path)
            elif kind == "folder":
                os.makedirs(path, exist_ok=True)
                _set_facts(path, entry["facts"])
            else:
                if entry["is_file"] or not os.path.lexists(path):
                    shutil.move(entry["copy"], path)
                elif not _is_same(path, entry["copy"]):
                    if os.path.islink(entry["copy"]) or os.path.islink(path):
                        os.unlink(path)
                    shutil.copy2(entry["copy"], path, follow_symlinks=False)
                _set_facts(path, entry["facts"])
    with suppress(OSError):
        os.unlink(folder / _JOURNAL)


def _entries(folder: Path) -> Iterator[dict[str, Any]]:
    with suppress(FileNotFoundError):
        text = (folder / _JOURNAL).read_text("utf-8", "surrogateescape")
        for line in text.splitlines():
            with suppress(ValueError):  # the process was killed while it wrote
                yield json.loads(line)


def _facts(path: str) -> list[int]:
    """Return mode, owners and times of a file or folder."""
    status = os.lstat(path)
    mode = stat.S_IMODE(status.st_mode)
    return [mode, status.st_uid, status.st_gid, status.st_atime_ns, status.st_mtime_ns]


def _set_facts(path: str, facts: list[int]) -> None:
    mode, user, group, *times = facts
    if _facts(path)[1:3] != [user, group] and hasattr(os, "lchown"):
        os.lchown(path, user, group)
    if not os.path.islink(path):
        os.chmod(path, mode)
        os.utime(path, ns=(times[0], times[1]))


def _is_same(path: str, copy: str) -> bool:
    one, other = os.lstat(path), os.lstat(copy)
    facts = [(each.st_mode, each.st_size, each.st_mtime_ns) for each in (one, other)]
    return facts[0] == facts[1]


def _real_path(arguments: tuple[Any, ...], place: int, fd_place: int) -> str | None:
    """Return the absolute path of an event; None for what is none, such as an open file."""
    path = arguments[place]
    if not isinstance(path, str | bytes | os.PathLike) or not path or path == ":memory:":
        return None
    name = os.fsdecode(path)
    dir_fd = arguments[fd_place] if fd_place and len(arguments) > fd_place else -1
    if isinstance(dir_fd, int) and dir_fd >= 0 and not os.path.isabs(name):
        name = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
    folder, last = os.path.split(os.path.abspath(name))
    return os.path.join(os.path.realpath(folder), last)

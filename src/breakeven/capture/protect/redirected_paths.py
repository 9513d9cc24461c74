"""Where a path leads when a run's writes go to a folder of ours, as far as Python's functions go.

The layout is that of an overlay: a copy of what was written, under the same path below a folder,
and a list of what was deleted.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from breakeven.capture.target import as_text
from breakeven.trace import FileChange, FileWrite

_NO_FILES = ("/dev", "/proc", "/sys")
_UPPER = "upper"
_DELETED = "deleted"


class RedirectedPaths:
    """Leads paths to copies.

    Args:
        folder: Holds the copies.
        passed: Folders whose files are written themselves.
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
        # Shared with the processes that the script forks: nothing is to be looked for before.
        self._has_written = mmap.mmap(-1, 1)

    def read(self, path: str) -> str:
        """Return where what a path names is to be read."""
        if not self._has_written[0]:
            return path
        real = self._real(path)
        if self._is_passed(real):
            return path
        copy = self._copy(real)
        return copy if os.path.lexists(copy) or self._is_deleted(real) else real

    def change(self, path: str, *, with_content: bool = True) -> str:
        """Return where what a path names is to be written, as it was.

        Args:
            path: Of the file or folder, which need not exist.
            with_content: What it holds is not to be replaced altogether.
        """
        real = self._real(path)
        if self._is_passed(real):
            return path
        copy = self._copy(real)
        if os.path.lexists(copy):
            return copy
        is_there = os.path.lexists(real) and not self._is_deleted(real)
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
        """Return where to write what replaces the content of a file."""
        return self.change(path, with_content=False)

    def create(self, path: str) -> str:
        """Return where to make what must not be there."""
        found = self.read(path)
        return found if os.path.lexists(found) else self.change(path)

    def delete(self, path: str) -> None:
        """Take what a path names, and all below, for gone; its copy is gone already."""
        real = self._real(path)
        self._has_written[0] = 1
        self._deleted.add(real)
        with open(self._journal, "ab") as journal:
            journal.write(os.fsencode(real) + b"\0")

    def is_passed(self, path: str) -> bool:
        """Return whether what a path names is written itself."""
        return self._is_passed(self._real(path))

    def is_copy(self, path: str) -> bool:
        """Return whether what a path names is there as a copy."""
        return os.path.lexists(self._copy(self._real(path)))

    def is_real(self, path: str) -> bool:
        """Return whether what a path names is there beside all copies, and not deleted."""
        real = self._real(path)
        return os.path.lexists(real) and not self._is_deleted(real)

    def names(self, path: str) -> dict[str, str]:
        """Return what a folder holds: where each of its entries is to be read, by name."""
        real = self._real(path)
        copy, found = self._copy(real), dict[str, str]()
        if not self._is_deleted(real):
            is_only_copy = not os.path.isdir(real) and os.path.isdir(copy)
            names = [] if is_only_copy else os.listdir(real)
            found = {
                name: os.path.join(real, name)
                for name in names
                if os.path.join(real, name) not in self._deleted
            }
        elif not os.path.isdir(copy):
            os.listdir(copy)  # raises what is to be raised
        if os.path.isdir(copy):
            found |= {name: os.path.join(copy, name) for name in os.listdir(copy)}
        return found

    def _copy_folder(self, real: str) -> None:
        """Have a folder among the copies, where it is there."""
        copy = self._copy(real)
        if os.path.isdir(copy) or not os.path.isdir(real) or self._is_deleted(real):
            return
        self._copy_folder(os.path.dirname(real))
        os.mkdir(copy)
        shutil.copystat(real, copy)

    def _real(self, path: str) -> str:
        absolute = os.path.abspath(path)
        if absolute.startswith(self._upper + os.sep):  # the script has gone to a copied folder
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

    def _is_deleted(self, real: str) -> bool:
        if not self._deleted:
            return False
        while real not in self._deleted:
            parent = os.path.dirname(real)
            if parent == real:
                return False
            real = parent
        return True


def redirected_writes(folder: Path) -> Iterator[FileWrite]:
    """Yield the files that a run created, changed or deleted.

    Args:
        folder: Holds the copies of a run whose processes are gone.
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
    """Return where the copy of a real path is, below the folder of copies."""
    drive, rest = os.path.splitdrive(real)
    return os.path.join(drive.rstrip(":"), rest.lstrip(os.sep))


def _real_path(below: Path) -> str:
    if os.name == "nt":
        return str(Path(f"{below.parts[0]}:{os.sep}", *below.parts[1:]))
    return os.path.join(os.sep, below)

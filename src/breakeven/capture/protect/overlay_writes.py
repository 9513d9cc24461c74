"""What a run wrote behind an overlay, read from its layers afterwards.

Source: https://docs.kernel.org/filesystems/overlayfs.html, "whiteouts and opaque directories".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from breakeven.capture.location import as_text
from breakeven.trace import FileChange, FileWrite


def overlay_writes(folder: Path) -> Iterator[FileWrite]:
    """Yield the files that a run created, changed or deleted.

    Args:
        folder: Holds the layers of an `Overlay`, whose processes are gone.
    """
    layers = {Path(os.fsdecode((layer / "path").read_bytes())): layer for layer in _layers(folder)}
    for path, layer in layers.items():
        yield from _layer_writes(layer / "upper", path)
    if Path("/") not in layers:
        yield from _bare_writes(folder / "root", Path("/"), frozenset(layers))


def _layers(folder: Path) -> Iterator[Path]:
    yield from (each for each in folder.iterdir() if (each / "path").exists())


def _layer_writes(upper: Path, path: Path) -> Iterator[FileWrite]:
    """Yield what is in a folder of the layer, which may be thousands of folders deep."""
    waiting = [(upper, path)]
    while waiting:
        ours, folder = waiting.pop()
        with suppress(OSError):  # its path is longer than the system takes
            entries = list(os.scandir(ours))
            if not entries and not os.path.lexists(folder):
                yield FileWrite(path=as_text(str(folder)), change=FileChange.CREATED)
            for entry in entries:
                real = folder / entry.name
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                    yield FileWrite(path=as_text(str(real)), change=FileChange.DELETED)
                elif stat.S_ISDIR(status.st_mode):
                    waiting.append((Path(entry.path), real))
                else:
                    yield _file_write(real, status)


def _bare_writes(ours: Path, path: Path, layered: frozenset[Path]) -> Iterator[FileWrite]:
    """Yield what was written to folders that got no layer themselves."""
    names = {entry.name for entry in ours.iterdir()}
    if os.access(path, os.W_OK):
        for entry in path.iterdir():
            if entry.name not in names:
                yield FileWrite(path=as_text(str(entry)), change=FileChange.DELETED)
    for name in sorted(names):
        real, own = path / name, ours / name
        status = own.lstat()
        if real in layered or not stat.S_IMODE(status.st_mode):
            continue
        if not os.path.lexists(real):
            yield from (_layer_writes(own, real) if own.is_dir() else [_file_write(real, status)])
        elif own.is_dir() and not own.is_symlink():
            if any(own.iterdir()):
                yield from _bare_writes(own, real, layered)
        elif status.st_mtime_ns != real.lstat().st_mtime_ns and not own.is_symlink():
            yield _file_write(real, status)


def _file_write(path: Path, status: os.stat_result) -> FileWrite:
    change = FileChange.CHANGED if os.path.lexists(path) else FileChange.CREATED
    return FileWrite(path=as_text(str(path)), change=change, num_bytes=status.st_size)

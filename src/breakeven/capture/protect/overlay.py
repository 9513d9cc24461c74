"""Let a run write to a layer over the file system that is thrown away, on Linux.

A mount namespace of its own sees every file through overlayfs: what is read comes from the files
themselves, what is written, renamed or deleted by whatever code lands in a folder of ours. Shared
memory is private too. Sources: mount_namespaces(7), user_namespaces(7), pivot_root(2), and
https://docs.kernel.org/filesystems/overlayfs.html.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from breakeven.capture.target import as_text
from breakeven.trace import FileChange, FileWrite

# Source: <sched.h>, <sys/mount.h> and <linux/capability.h>.
_CLONE_NEWNS = 0x0002_0000
_CLONE_NEWUSER = 0x1000_0000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 32, 4096, 16384, 1 << 19
_MNT_DETACH = 2
_CAPABILITY_VERSION = 0x2008_0522
# What the kernel makes up, or what others listen in; everything else holds files.
_NO_FILES = frozenset({
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
    "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore",
    "rpc_pipefs", "securityfs", "sysfs", "tracefs",
})  # fmt: skip
_RUNTIME = ("/dev", "/proc", "/run", "/sys")
_SHARED_MEMORY = "/dev/shm"
# A socket is found only through the very folder that its owner listens in.
_SOCKETS = ("/tmp/.X11-unix", "/tmp/nvidia-mps")
# Flags of a mount that must not be taken off: those against set-user-ID, devices, and programs, and
# those of access times. statvfs(3) and mount(2) have the same numbers for them.
_LOCKED_FLAGS = 2 | 4 | 8 | 1024 | 2048
# Files beside something mounted, if the folder itself gets no layer: smaller files are
# copied, and larger ones cannot be written.
_SMALL_BYTES = 1 << 26
_ESCAPED = re.compile(r"([\\,:])")
_OCTAL = re.compile(r"\\(\d{3})")


@dataclass(frozen=True, slots=True)
class _Mount:
    """What is mounted at a path."""

    holds_files: bool
    is_read_only: bool


class Overlay:
    """Where the writes of one run go.

    Args:
        folder: Holds the layers; on a file system that overlayfs can write to.
        kept: Folders whose writes are real.
        used: Folders that the run is likely to write to, which may lie anywhere.
    """

    def __init__(self, folder: Path, kept: Sequence[Path] = (), used: Sequence[Path] = ()) -> None:
        self._folder = folder
        self._kept = [path for path in dict.fromkeys(kept) if path.is_dir()]
        self._used = used
        self._root = folder / "root"
        self._has_own_users = False
        self._num_layers = 0
        self._layered: set[str] = set()

    def enter(self) -> None:
        """Move this process, which must have one thread, and all that it starts behind the layer.

        Raises:
            OSError: It is not allowed here, or the kernel has no overlayfs. The process is of no
                use any more.
        """
        current = Path.cwd()
        self._root.mkdir(parents=True)
        self._has_own_users = _unshare()
        # What the system mounts meanwhile, as an automounter does, is seen; what is mounted here is
        # not seen outside.
        _mount(None, "/", flags=_MS_REC | _MS_SLAVE)
        _mount(self._root, self._root, flags=_MS_BIND)
        mounts = _visible_mounts()
        self._layer("/", mounts)
        if self._has_own_users:
            self._layer_used(mounts)
        for folder in (*self._kept, *map(Path, _SOCKETS)):
            if folder.is_dir():
                self._bind(str(folder.resolve()))
        if _SHARED_MEMORY in mounts:
            size = os.statvfs(_SHARED_MEMORY)
            options = f"mode=1777,size={size.f_frsize * size.f_blocks}"
            _mount("tmpfs", self._at(_SHARED_MEMORY), "tmpfs", options=options)
        # Who deletes all temporary files would delete what notes the deletions, without end.
        _mount("tmpfs", self._at(str(self._folder)), "tmpfs", flags=_MS_RDONLY)
        os.chdir(self._root)
        _check(_libc().pivot_root(b".", b"."), "pivot_root")
        _check(_libc().umount2(b".", _MNT_DETACH), "umount2")
        os.chdir(current)
        if self._has_own_users:
            # Give back what mounting took: a script must not be let in where its user is not.
            header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
            _check(_libc().capset(header, (ctypes.c_uint32 * 6)()), "capset")
            os.rename, os.replace = _moving(os.rename), _moving(os.replace)

    def _layer(self, path: str, mounts: dict[str, _Mount]) -> None:
        """Let what lies at a path be seen at the same path of the new root, writes apart."""
        below = [each for each in mounts if each != path and _is_inside(each, path)]
        mount = mounts.get(path)
        if mount is not None and not mount.holds_files:
            self._bind(path)  # with all that is mounted below
            below = [each for each in below if mounts[each].holds_files]
        else:
            try:
                self._overlay(path)
            except OSError as error:
                if below and error.errno == errno.EINVAL:
                    # What is mounted below must not be uncovered by users of a namespace.
                    self._layer_entries(path, mounts)
                    return
                if os.access(path, os.W_OK) and not (mount and mount.is_read_only):
                    raise
                self._bind(path)
                return
        topmost: list[str] = []
        for each in sorted(below):
            if not any(_is_inside(each, other) for other in topmost):
                topmost.append(each)
                self._layer(each, mounts)

    def _layer_entries(self, path: str, mounts: dict[str, _Mount]) -> None:
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except PermissionError:
            self._bind(path)
            return
        for entry in entries:
            new = self._at(entry.path)
            if entry.is_symlink():
                new.symlink_to(Path(entry.path).readlink())
            elif entry.is_dir():
                new.mkdir()
                self._layer(entry.path, mounts)
            elif os.access(entry.path, os.W_OK) and entry.stat().st_size <= _SMALL_BYTES:
                shutil.copy2(entry.path, new)
            else:
                new.touch(mode=0)
                _mount(entry.path, new, flags=_MS_BIND)
                if os.access(entry.path, os.W_OK):
                    kept = os.statvfs(entry.path).f_flag & _LOCKED_FLAGS
                    _mount(None, new, flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)
        _copy_mode(path, self._at(path))

    def _layer_used(self, mounts: dict[str, _Mount]) -> None:
        """Give layers of their own to folders that lie in such of other users and groups.

        To write to a folder, overlayfs copies all that it lies in, and a user namespace of ours
        lets no copy be of another user or group.
        """
        for path in self._used:
            folders = [path, *path.parents] if path.is_dir() else []
            for folder in reversed(folders):
                is_bare = not any(_is_inside(each, str(folder)) for each in mounts)
                if is_bare and os.access(folder, os.W_OK) and not self._can_copy(folder):
                    with suppress(OSError):  # nothing is written there then
                        self._overlay(str(folder))

    def _can_copy(self, folder: Path) -> bool:
        if str(folder) in self._layered:
            return True
        status = folder.stat()
        is_own = (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())
        return is_own and folder != folder.parent and self._can_copy(folder.parent)

    def _overlay(self, path: str) -> None:
        layer = self._folder / str(self._num_layers)
        self._num_layers += 1
        for name in ("upper", "work"):
            (layer / name).mkdir(parents=True)
        (layer / "path").write_bytes(os.fsencode(path))
        _copy_mode(path, layer / "upper")
        folders = {"lowerdir": path, "upperdir": layer / "upper", "workdir": layer / "work"}
        options = ",".join(
            name + "=" + _ESCAPED.sub(r"\\\1", str(folder)) for name, folder in folders.items()
        )
        # Renaming a folder needs an attribute that only the first user namespace may set.
        options += ",userxattr" if self._has_own_users else ",redirect_dir=on"
        _mount("overlay", self._at(path), "overlay", options=options)
        self._layered.add(path)

    def _bind(self, path: str) -> None:
        _mount(path, self._at(path), flags=_MS_BIND | _MS_REC)

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")


def _visible_mounts() -> dict[str, _Mount]:
    """Return what is mounted where, by path; of what is hidden by another mount nothing."""
    mounts = {}
    # Source: proc_pid_mountinfo(5).
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        before, _, after = os.fsdecode(line).partition(" - ")
        device, _, raw_path, settings = before.split()[2:6]
        path = _OCTAL.sub(lambda match: chr(int(match[1], 8)), raw_path)
        kind, _, of_system = after.split(" ", 2)
        try:
            found = Path(path).stat().st_dev
        except OSError:
            continue
        # Btrfs gives its files other numbers of devices than mountinfo does.
        if kind != "btrfs" and f"{os.major(found)}:{os.minor(found)}" != device:
            continue
        is_read_only = "ro" in settings.split(",") or "ro" in of_system.split(",")
        is_runtime = any(path == each or _is_inside(path, each) for each in _RUNTIME)
        holds_files = kind not in _NO_FILES and not (is_runtime and kind in ("tmpfs", "ramfs"))
        mounts[path] = _Mount(holds_files, is_read_only)
    return mounts


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(folder if folder == "/" else f"{folder}/")


def _copy_mode(path: str, ours: Path) -> None:
    """Let a folder of ours be as open to its user as the one that it stands for."""
    status = Path(path).stat()
    with suppress(OSError):  # nobody of this namespace
        os.chown(ours, status.st_uid, status.st_gid)
    unwritable = 0 if os.access(path, os.W_OK) else 0o222
    ours.chmod(stat.S_IMODE(status.st_mode) & ~unwritable)


def _unshare() -> bool:
    """Get a mount namespace; return whether it took a user namespace of its own."""
    try:
        _check(_libc().unshare(_CLONE_NEWNS), "unshare")
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        _check(_libc().unshare(_CLONE_NEWNS | _CLONE_NEWUSER), "unshare")
        own = Path("/proc/self")
        (own / "setgroups").write_text("deny")
        (own / "uid_map").write_text(f"{user} {user} 1")
        (own / "gid_map").write_text(f"{group} {group} 1")
        return True
    return False


def _moving(move: Callable[..., None]) -> Callable[..., None]:
    """Return a function that moves folders too, which the kernel lets programs do by copies."""

    @functools.wraps(move)
    def call(src: Any, dst: Any, **descriptors: Any) -> None:
        try:
            move(src, dst, **descriptors)
        except OSError as error:
            if error.errno != errno.EXDEV or descriptors or not Path(os.fsdecode(src)).is_dir():
                raise
            with suppress(FileNotFoundError):
                Path(os.fsdecode(dst)).rmdir()
            shutil.copytree(src, dst, symlinks=True)
            shutil.rmtree(src)

    return call


def _mount(
    source: str | Path | None,
    target: str | Path,
    kind: str | None = None,
    *,
    flags: int = 0,
    options: str | None = None,
) -> None:
    raw = (None if each is None else os.fsencode(each) for each in (source, target, kind))
    data = None if options is None else os.fsencode(options)
    _check(_libc().mount(*raw, ctypes.c_ulong(flags), data), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def overlay_writes(folder: Path) -> Iterator[FileWrite]:
    """Yield the files that a run created, changed or deleted.

    Args:
        folder: Holds the layers of an `Overlay`, whose processes are gone.
    """
    layers = {
        Path(os.fsdecode((layer / "path").read_bytes())): layer
        for layer in folder.iterdir()
        if (layer / "path").exists()
    }
    for path, layer in layers.items():
        yield from _layer_writes(layer / "upper", path)
    if Path("/") not in layers:
        yield from _bare_writes(folder / "root", Path("/"), frozenset(layers))


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

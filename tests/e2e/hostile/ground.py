"""Where hostile scripts are run: folders whose every byte is known, and what is left elsewhere."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path
from time import monotonic, sleep

import torch
from check_process import processes_with

import breakeven
from breakeven.capture import Launcher

# Scripts that write where others do give their files this name.
MARK = "hostile-mark"
# How long what a run left may take to end.
_GRACE_S = 5.0
_POLL_S = 0.02
_PACKAGES = Path(torch.__file__).parents[1]
_MARKED_FOLDERS = (
    *map(Path, ("/", "/etc", "/opt", "/tmp", "/usr/local/lib", "/var/tmp", "/dev/shm")),
    _PACKAGES,
    Path(torch.__file__).parent,
)
_SYSTEM_FILES = (
    *map(Path, ("/etc/passwd", "/etc/hosts", "/etc/profile")),
    Path(torch.__file__),
    Path(torch.__file__).with_name("version.py"),
    Path(breakeven.__file__),
    Path(sys.executable),
)

TRAINING = '''\
"""A small training loop for scripts whose peculiarity lies elsewhere."""

import itertools

import torch


def steps(num_steps=None, device=None):
    """Yield the loss of each step."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in itertools.repeat(None) if num_steps is None else range(num_steps):
        x, y = torch.randn(8, 16, device=device), torch.randint(0, 4, (8,), device=device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        yield loss


def train(num_steps=None):
    for _ in steps(num_steps):
        pass
'''


class Ground:
    """A project, the home of its user and a folder beside them, with a launcher that runs there.

    Args:
        folder: Of its own, with a short path, since sockets are made in it.
    """

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.script = self.project / "train.py"
        self.temporary = folder / "t"
        self.tag = str(folder)
        self._outside = folder / "outside"
        self._home = folder / "home"
        self._launcher: Launcher | None = None

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of the launcher."""
        return {
            "HOME": str(self._home),
            "TMPDIR": str(self.temporary),
            # What is compiled once is kept, and would be taken for a temporary file that is left.
            "TORCHINDUCTOR_CACHE_DIR": f"{self.tag}/inductor",
            "XDG_CACHE_HOME": f"{self.tag}/cache",
        }

    def lay_out(self) -> None:
        """Make all folders and files anew, and go into the project."""
        for folder in (self.project, self._home, self._outside, self.temporary):
            shutil.rmtree(folder, ignore_errors=True)
        for path, text in {
            self.project / "training.py": TRAINING,
            self.project / "data" / "train.csv": "1,2,3\n" * 1000,
            self.project / "data" / "deep" / "labels.bin": "\0\1" * 4096,
            self.project / "checkpoints" / "best.pt": "good" * 1000,
            self._home / ".bashrc": "alias ll='ls -l'\n",
            self._home / ".cache" / "settings": "a=1",
            self._outside / "precious.txt": "precious\n",
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.project / "link.txt").symlink_to(self._outside / "precious.txt")
        (self.project / "same.csv").hardlink_to(self.project / "data" / "train.csv")
        self.temporary.mkdir()
        os.chdir(self.project)

    def launcher(self) -> Launcher:
        """Return the launcher, a new one where a script has brought the last one down."""
        if self._launcher is None:
            self._launcher = Launcher()
        return self._launcher

    def close(self) -> None:
        """End the launcher."""
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            launcher.close()

    def state(self) -> dict[Path, object]:
        """Return all that a run must leave as it is, as far as that can be compared at once."""
        found: dict[Path, object] = {}
        for folder in (self.project, self._home, self._outside):
            for path in (folder, *folder.rglob("*")):
                found[path] = _state_of(path)
        found |= {path: _state_of(path) for path in _SYSTEM_FILES if path.exists()}
        marked = (path for folder in _MARKED_FOLDERS for path in folder.glob(f"*{MARK}*"))
        return found | dict.fromkeys(marked, "left by a script")

    def left(self, shared: set[str]) -> list[str]:
        """Return what is left of a run some seconds later: processes, and temporary files.

        Args:
            shared: What was in shared memory before it.
        """
        deadline_s = monotonic() + _GRACE_S
        while (found := self._left_now(shared)) and monotonic() < deadline_s:
            sleep(_POLL_S)
        return found

    def _left_now(self, shared: set[str]) -> list[str]:
        server = 0 if self._launcher is None else self._launcher._processes.process.pid
        processes = {p: text for p, text in processes_with(self.tag).items() if p != server}
        found = [f"process {process}: {text}" for process, text in processes.items()]
        # Also those that have cleared their environment.
        found += [f"child {each} of the server" for each in _children(server)]
        folders = 0 if self._launcher is None else 1
        names = [path.name for path in self.temporary.iterdir()]
        found += names if len(names) > folders else []
        return found + sorted(shared_memory() - shared)


def shared_memory() -> set[str]:
    """Return the names of what is in shared memory."""
    folder = Path("/dev/shm")
    return {str(path) for path in folder.iterdir()} if folder.is_dir() else set()


def _state_of(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    content: object = None
    if path.is_symlink():
        content = path.readlink()
    elif stat.S_ISREG(status.st_mode):
        content = path.read_bytes()
    return (
        status.st_ino, status.st_mode, status.st_uid, status.st_gid, status.st_nlink,
        status.st_mtime_ns, content,
    )  # fmt: skip


def _children(process: int) -> list[int]:
    if not process:
        return []
    tasks = Path(f"/proc/{process}/task")
    try:
        return [int(p) for task in tasks.iterdir() for p in (task / "children").read_text().split()]
    except OSError:
        return []

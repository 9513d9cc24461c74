"""A run of ``breakeven check`` as a user starts it, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
BREAKEVEN = Path(sys.executable).with_name("breakeven")
# An environment variable is inherited by every descendant, also by one that left its group.
TAG_NAME = "BREAKEVEN_E2E"
_PROC = Path("/proc")
# Helpers that torch starts end by themselves once they see that their parent is gone.
_GRACE_S = 5.0
# In a process of its own: to try it is to fork, and other tests may have left threads in this one.
_TRY_OVERLAY = """
import sys
from pathlib import Path
from breakeven.capture.protect.scratch import Scratch
from breakeven.capture.messages import Keep
from breakeven.trace import WriteProtection
layer = Scratch(Path(sys.argv[1]), Keep()).layer()
sys.exit(layer.protection is not WriteProtection.OVERLAY)
"""


@cache
def can_overlay() -> bool:
    """Return whether a process may put a layer over the file system here."""
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run([sys.executable, "-c", _TRY_OVERLAY, folder], check=False)
    return tried.returncode == 0


class CheckRun(NamedTuple):
    """How a run of the command ended.

    ``peak_rss_bytes`` is of the command's own process, not of the script's; None where the
    system does not tell.
    """

    returncode: int
    stdout: str
    stderr: str
    document: Any
    elapsed_s: float
    peak_rss_bytes: int | None

    @property
    def gpus(self) -> list[dict[str, Any]]:
        return [result for result in self.document["results"] if result["kind"] == "gpu"]

    @property
    def cpus(self) -> list[dict[str, Any]]:
        return [result for result in self.document["results"] if result["kind"] == "cpu"]

    @property
    def caveat_codes(self) -> set[str]:
        """Codes of the caveats of the report and of all results."""
        holders = [self.document, *self.document["results"]]
        return {caveat["code"] for holder in holders for caveat in holder["caveats"]}

    def names_line(self, file: Path, line: int) -> bool:
        """Return whether stderr names a line of a file, as ``train.py:7`` or as Python does."""
        name = re.escape(file.name)
        return re.search(rf'{name}(:|", line ){line}\b', self.stderr) is not None


def line_of(file: Path, snippet: str) -> int:
    """Return the number of the only line that holds ``snippet``."""
    lines = file.read_text().splitlines()
    found = [number for number, line in enumerate(lines, start=1) if snippet in line]
    assert len(found) == 1, f"{snippet!r} is on lines {found} of {file}"
    return found[0]


def run_process(
    command: Sequence[str],
    cwd: Path,
    variables: Mapping[str, str],
    tmp_path: Path,
    timeout_s: float,
    interrupt_when: Path | None,
    interrupt_by: signal.Signals = signal.SIGINT,
) -> CheckRun:
    """Run the command to its end in a session of its own; fail the test after ``timeout_s``.

    Args:
        command: Program and arguments.
        cwd: Working directory.
        variables: Environment.
        tmp_path: Folder that takes what is printed.
        timeout_s: Seconds after which all is killed.
        interrupt_when: File whose appearance is the moment to send a signal.
        interrupt_by: The signal; by default what Ctrl-C sends.
    """
    # Files instead of pipes: a child that survives would keep a pipe open and hang the test.
    stdout_path, stderr_path = tmp_path / "stdout", tmp_path / "stderr"
    peak_rss_bytes = None
    start = time.monotonic()
    # stdin stays open and silent, as a terminal at which nobody types.
    with stdout_path.open("wb") as stdout, stderr_path.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    with process:
        while process.poll() is None:
            peak_rss_bytes = _peak_rss_bytes(process.pid) or peak_rss_bytes
            if interrupt_when is not None and interrupt_when.exists():
                os.killpg(process.pid, interrupt_by)
                interrupt_when = None
            if time.monotonic() - start > timeout_s:
                os.killpg(process.pid, signal.SIGKILL)
                pytest.fail(f"still running after {timeout_s} s: {stderr_path.read_text()}")
            time.sleep(0.02)
    elapsed_s = time.monotonic() - start
    # Strict decoding: what breakeven prints is UTF-8, whatever the script is called or prints.
    stdout_text = stdout_path.read_bytes().decode()
    stderr_text = stderr_path.read_bytes().decode()
    return CheckRun(process.returncode, stdout_text, stderr_text, None, elapsed_s, peak_rss_bytes)


def _peak_rss_bytes(pid: int) -> int | None:
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", status) or re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else None


def list_files(*folders: Path) -> set[Path]:
    """Return all files and folders below ``folders``."""
    return {path for folder in folders for path in folder.rglob("*")}


def end_leftovers(tag: str) -> list[str]:
    """Kill the processes that inherited ``tag`` and do not end by themselves.

    Returns:
        Their command lines, each with its process id.
    """
    deadline = time.monotonic() + _GRACE_S
    while (left := processes_with(tag)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"{pid}: {command}" for pid, command in left.items()]


def processes_with(tag: str) -> dict[int, str]:
    """Return the processes that inherited ``tag``, with their command lines."""
    if not _PROC.is_dir():
        return {}
    found: dict[int, str] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            if f"{TAG_NAME}={tag}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = command.decode(errors="replace")
        except OSError:  # ended meanwhile, or of another user
            continue
    return found

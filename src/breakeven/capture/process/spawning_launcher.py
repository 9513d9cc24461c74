"""Start each run as a new process, where processes cannot be forked."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

import msgspec

from breakeven.capture.keep import KEEP_NOTHING, Keep
from breakeven.capture.process.descendants import end_run
from breakeven.capture.process.launcher import (
    GRACE_S,
    MESSAGES,
    START_LIMIT_S,
    Launcher,
    run_environment,
)
from breakeven.capture.process.process_tree import OF_ITS_OWN, end_tree
from breakeven.capture.process.script_output import ScriptOutput
from breakeven.capture.protect.scratch import Layer, Scratch, remove_tree
from breakeven.capture.protocol import Answer, Ended, Ready, Request, Started
from breakeven.trace import FileWrites

_OUTPUT_LIMIT_S = 0.5
_POLL_S = 0.2


class SpawningLauncher(Launcher):
    """Runs each target in a new process that imports torch itself.

    It takes seconds longer per run than to fork, and needs nothing but pipes, threads and
    processes. A script has no terminal.

    Args:
        keep: What of the targets' side effects is to be real.
    """

    def __init__(self, keep: Keep = KEEP_NOTHING) -> None:
        self._keep = keep
        self._scratch = tempfile.TemporaryDirectory(prefix="breakeven-", ignore_cleanup_errors=True)
        self._writes: FileWrites | None = None
        self._quiet_trackers: dict[str, None] = {}
        output_fd, self._script_fd = os.pipe()
        self._output = _PipeOutput(output_fd)
        self._ready: Ready | None = None
        self._run: _SpawnedRun | None = None

    def ready(self) -> Ready:
        """Ask a process of its own: whoever asks a GPU of some kinds has begun to use it."""
        if self._ready is None:
            self._start(None)
        return super().ready()

    def close(self) -> None:
        """End whatever runs."""
        self._end_child()
        if self._script_fd >= 0:
            os.close(self._script_fd)
            self._script_fd = -1
        self._output.close()
        self._scratch.cleanup()

    def _turns(
        self, request: Request, limit_s: float, tell: Callable[[str], None]
    ) -> Generator[None, None, Answer]:
        self.ready()
        run = self._start(request)
        if not isinstance(self._receive(monotonic() + START_LIMIT_S), Started):
            raise self._not_ready()
        self._request_fd = self._turn_fd = run.request_fd
        return (yield from super()._turns(request, limit_s, tell))

    def _start(self, request: Request | None) -> _SpawnedRun:
        """Start the process of a request, or of none, which tells what is here."""
        self._end_child()
        folder = Path(tempfile.mkdtemp(dir=self._scratch.name))
        self._run = _SpawnedRun(request, self._keep, folder, self._script_fd)
        self._server = self._run.process
        return self._run

    def _end_child(self) -> None:
        if self._run is not None:
            self._run.end()

    def _receive(self, deadline_s: float) -> Any:
        assert self._run is not None, "a process was started"
        return self._run.receive(deadline_s)


class _SpawnedRun:
    """The process of one run, and the messages that come from it; ``Ended`` is the last.

    Args:
        request: What it will be asked for; None where it only tells what is here.
        keep: What of the script's side effects is to be real.
        folder: Of its temporary files; is removed.
        script_fd: Where the script prints to.
    """

    def __init__(self, request: Request | None, keep: Keep, folder: Path, script_fd: int) -> None:
        self._folder = folder
        self._layer: Layer | None = None
        if request is not None:  # the process finds the same by the same
            self._layer = Scratch(folder, keep, may_fork=False).layer_for(request)
        kind = "ready" if request is None else "run"
        self.process = subprocess.Popen(
            # -P: no file in the current folder takes the place of a module of Python's or torch's.
            [
                *(sys.executable, "-P", "-m", "breakeven.capture.process.spawned_run", kind),
                msgspec.json.encode(keep).decode(),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=script_fd,
            env=run_environment(str(folder)),
            **OF_ITS_OWN,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._answers = self.process.stdin, self.process.stdout
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    @property
    def request_fd(self) -> int:
        """Return where it reads its request, and its turns."""
        return self._requests.fileno()

    def receive(self, deadline_s: float) -> Any:
        """Return the next message, or None when the deadline passes first.

        Args:
            deadline_s: By `monotonic`.
        """
        # On Windows, Ctrl-C is seen between two waits, and not within one.
        while (left_s := deadline_s - monotonic()) > 0:
            with suppress(Empty):
                return self._messages.get(timeout=min(left_s, _POLL_S))
        return None

    def end(self) -> None:
        """End it, and all that it has started."""
        if self._waiter.is_alive():
            end_tree(self.process)
            self._waiter.join()
        self._requests.close()

    def _wait(self) -> None:
        # A pipe cannot be waited for with a limit on Windows, but a queue can.
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        exit_code = self.process.wait()
        end_tree(self.process)  # data loader workers, for instance
        end_run(str(self._folder))
        reader.join(GRACE_S)  # whoever has left the group may have the pipe open
        writes = self._layer.writes() if self._layer is not None else None
        remove_tree(self._folder)
        self._messages.put(Ended(exit_code=exit_code, writes=writes))

    def _read(self) -> None:
        with self._answers:
            for line in self._answers:
                with suppress(ValueError):  # empty, or a script has written it
                    self._messages.put(MESSAGES.decode(line))


class _PipeOutput(ScriptOutput):
    """Reads without asking first whether there is anything, which a pipe does not tell on Windows.

    Args:
        fd: Where it comes out.
    """

    def __init__(self, fd: int) -> None:
        self._came = threading.Event()
        super().__init__(fd, None)

    def close(self) -> None:
        """Read what is left; whoever keeps the pipe open is not waited for."""
        self._thread.join(_OUTPUT_LIMIT_S)
        if self._fd >= 0 and not self._thread.is_alive():
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        while self._keep():
            self._came.set()

    def _has_more(self, wait_s: float) -> bool:
        self._came.clear()
        return self._came.wait(wait_s)

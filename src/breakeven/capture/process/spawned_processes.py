"""A new process for each run, where processes cannot be forked."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

import msgspec

from breakeven.capture.answers import Ended, Message, Ready, Started
from breakeven.capture.process.commands import python_command
from breakeven.capture.process.ending import OF_ITS_OWN, end_run, end_tree
from breakeven.capture.process.run_processes import (
    POLL_S,
    RunProcesses,
    parse,
    run_environment,
)
from breakeven.capture.process.script_output import ScriptOutput
from breakeven.capture.protect.scratch import Layer, Scratch, remove_tree
from breakeven.capture.requests import Keep, Request

_OUTPUT_LIMIT_S = 0.5
# Whoever has left the group of a run may have its pipe open, and is waited for so long.
_READ_LIMIT_S = 5.0


class SpawnedProcesses(RunProcesses):
    """Runs each target in a new process that imports torch itself.

    It takes seconds longer per run than to fork, and needs nothing but pipes, threads and
    processes. A script has no terminal.

    Args:
        keep: What of the targets' side effects is to be real.
        folder: Of temporary files.
    """

    def __init__(self, keep: Keep, folder: Path) -> None:
        self._keep = keep
        self._folder = folder
        output_fd, self._script_fd = os.pipe()
        self._run: _SpawnedRun | None = None
        super().__init__(_PipeOutput(output_fd))

    def ready(self) -> Ready:
        """Ask a process of its own: whoever asks a GPU of some kinds has begun to use it."""
        if self._ready is None:
            self._start(None)
        return super().ready()

    def begin(self, request: Request) -> None:
        """Start the process, and ask it once it has imported torch."""
        run = self._start(request)
        self._first_message(Started)
        self.output.clear()
        os.write(run.request_fd, msgspec.json.encode(request) + b"\n")

    def give_turn(self) -> None:
        """Let the run that waits for its turn go on."""
        assert self._run is not None
        os.write(self._run.request_fd, b".")

    def end_run(self) -> None:
        """End the process of the run, and all that it has started."""
        if self._run is not None:
            self._run.end()

    def close(self) -> None:
        """End whatever runs."""
        self.end_run()
        if self._script_fd >= 0:
            os.close(self._script_fd)
            self._script_fd = -1
        self.output.close()

    def receive(self, deadline_s: float) -> Message | None:
        """Return the next message, or None when the deadline passes first."""
        assert self._run is not None, "a process was started"
        return self._run.receive(deadline_s)

    def _start(self, request: Request | None) -> _SpawnedRun:
        """Start the process of a request, or of none, which tells what is here."""
        self.end_run()
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        self._run = _SpawnedRun(request, self._keep, folder, self._script_fd)
        self.process = self._run.process
        return self._run


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
        self.process: subprocess.Popen[Any] = subprocess.Popen(
            python_command("process.spawned_run", kind, msgspec.json.encode(keep).decode()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=script_fd,
            env=run_environment(folder),
            **OF_ITS_OWN,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._answers = self.process.stdin, self.process.stdout
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    @property
    def request_fd(self) -> int:
        """Return where it reads its request, and its turns."""
        return self._requests.fileno()

    def receive(self, deadline_s: float) -> Message | None:
        """Return the next message, or None when the deadline passes first."""
        # On Windows, Ctrl-C is seen between two waits, and not within one.
        while (left_s := deadline_s - monotonic()) > 0:
            with suppress(Empty):
                return self._messages.get(timeout=min(left_s, POLL_S))
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
        reader.join(_READ_LIMIT_S)
        writes = self._layer.writes() if self._layer is not None else None
        remove_tree(self._folder)
        self._messages.put(Ended(exit_code=exit_code, writes=writes))

    def _read(self) -> None:
        with self._answers:
            for line in self._answers:
                message = parse(line)
                if message is not None:
                    self._messages.put(message)


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

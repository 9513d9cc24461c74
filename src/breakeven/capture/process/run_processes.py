"""Creates the processes of runs, and receives their messages.

A server that has imported torch forks a process for each run. If forking is impossible, each run
starts a new process.
"""

from __future__ import annotations

import getpass
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeVar

import msgspec

from breakeven.capture.messages import Ended, Keep, Message, Ready, Request, Started
from breakeven.capture.process.children import (
    OF_ITS_OWN,
    RUN_VARIABLE,
    end_run,
    end_tree,
    python_command,
)
from breakeven.capture.process.script_output import ScriptOutput, ScriptTerminal, user_terminal_size
from breakeven.capture.protect.scratch import Scratch, remove_tree
from breakeven.errors import BreakevenError

START_LIMIT_S = 120.0
# The server ends all processes of the script; this is more than the longest time for that.
END_LIMIT_S = 6.0
# Interval for checking that a process is alive.
_POLL_S = 0.2
# Limits on waiting for the output and the pipe of an ended process: a process that left the run's
# group may hold them open.
_OUTPUT_LIMIT_S = 0.5
_READ_LIMIT_S = 5.0
_First = TypeVar("_First", Ready, Started)
_MESSAGES = msgspec.json.Decoder(Message)


class RunProcesses(ABC):
    """Creates a process for each run, one at a time, and receives its messages.

    Args:
        output: The scripts' output.
    """

    # The process that imports torch and answers for the run.
    process: subprocess.Popen[Any]

    def __init__(self, output: ScriptOutput) -> None:
        self.output = output
        self._ready: Ready | None = None

    def ready(self) -> Ready:
        """Wait until torch is imported, and return the facts about it."""
        if self._ready is None:
            self._ready = self._first_message(Ready)
        return self._ready

    def _first_message(self, kind: type[_First]) -> _First:
        """Wait for the first message of a process that imports torch.

        Raises:
            BreakevenError: The process was killed, is late, or failed.
        """
        answer = self.receive(monotonic() + START_LIMIT_S)
        if isinstance(answer, kind):
            return answer
        status = self.process.poll()
        if status is None:
            message = f"torch was not imported by {sys.executable} within {START_LIMIT_S:g} s"
            hint = "try again when this machine and the disk with torch are less busy"
        elif status < 0:
            name = signal.Signals(-status).name
            message = f"the process that imports torch was ended by signal {name}"
            hint = "memory may have run out, or another program ended it: try again"
        else:
            last = "".join(f": {line}" for line in self.output.text().strip().splitlines()[-1:])
            message = f"torch could not be imported by {sys.executable}{last}"
            hint = "run `python -c 'import torch'` with the same Python"
        raise BreakevenError(message, hint=hint)

    @abstractmethod
    def receive(self, deadline_s: float) -> Message | None:
        """Return the next message, or None at the deadline.

        ``Ended`` is the last message of a run.

        Args:
            deadline_s: Deadline by `monotonic`.
        """


def _parse(line: bytes | bytearray) -> Message | None:
    """Return a message; None for an empty line or one that a script wrote."""
    with suppress(ValueError):
        return _MESSAGES.decode(line)
    return None


def _run_environment(scratch: Path) -> dict[str, str]:
    """Return the environment variables for processes that run targets.

    Args:
        scratch: Folder of their temporary files; also the mark in `RUN_VARIABLE`.
    """
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "TQDM_DISABLE": "1",
        "TMPDIR": str(scratch),
        RUN_VARIABLE: str(scratch),
        # Share compiled code between runs, as under plain Python.
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        or f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}",
    }


class ForkServer(RunProcesses):
    """Lets a process that has imported torch fork the runs: see `server.serve`.

    Args:
        keep: Side effects of the targets to keep.
        folder: Folder of temporary files.
    """

    def __init__(self, keep: Keep, folder: Path) -> None:
        request_read, self._request_fd = os.pipe()
        self._answer_fd, answer_write = os.pipe()
        turn_read, self._turn_fd = os.pipe()
        size = user_terminal_size()
        terminal = ScriptTerminal(size) if size is not None else None
        output_fd, script_fd = (
            (terminal.our_end, terminal.scripts_end) if terminal is not None else os.pipe()
        )
        descriptors = (request_read, answer_write, turn_read)
        options = (msgspec.json.encode(keep).decode(), *map(str, descriptors))
        self.process = subprocess.Popen(
            python_command("process.server", "fork", *options),
            stdin=script_fd if terminal is not None else subprocess.DEVNULL,
            stdout=script_fd,
            stderr=script_fd,
            pass_fds=descriptors,
            env=_run_environment(folder),
            start_new_session=True,  # only our process receives Ctrl-C, and we end the others
        )
        for fd in (*descriptors, script_fd):
            os.close(fd)
        self._folder = folder
        self._buffer = bytearray()
        self._child = 0
        super().__init__(ScriptOutput(output_fd))

    def begin(self, request: Request) -> None:
        """Request a process from the server."""
        self.output.clear()
        os.write(self._request_fd, msgspec.json.encode(request) + b"\n")

    def give_turn(self) -> None:
        """Start the next turn of the waiting run."""
        os.write(self._turn_fd, b".")

    def end_run(self) -> None:
        """End the script's own process; the server ends the processes that it started."""
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)

    def close(self) -> None:
        """End the server and its run."""
        if self._request_fd >= 0:
            for fd in (self._request_fd, self._turn_fd, self._answer_fd):
                os.close(fd)
            self._request_fd = -1
        if self._ready is None:  # no run has started
            self.process.kill()
        # When its requests end, the server ends, after it has ended the run.
        try:
            self.process.wait(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.returncode:
            self.end_run()
            end_run(str(self._folder))
        self.output.close()

    def receive(self, deadline_s: float) -> Message | None:
        """Return the next message, or None at the deadline."""
        while (line := self._receive_line(deadline_s)) is not None:
            message = _parse(line)
            if isinstance(message, Started):
                self._child = message.process
            elif message is not None:
                self._child = 0 if isinstance(message, Ended) else self._child
                return message
        return None

    def _receive_line(self, deadline_s: float) -> bytearray | None:
        num_searched = 0
        while self._buffer.find(b"\n", num_searched) < 0:
            num_searched = len(self._buffer)
            wait_s = max(0.0, min(_POLL_S, deadline_s - monotonic()))
            readable, _, _ = select.select([self._answer_fd], [], [], wait_s)
            # A script's remaining processes may hold the pipe of a dead server open.
            has_died = not readable and self.process.poll() is not None
            if not readable and not has_died:
                if monotonic() < deadline_s:
                    continue
                return None
            data = b"" if has_died else os.read(self._answer_fd, 1 << 16)
            if not data:
                if self._ready is None:
                    self.process.wait()
                    self.output.close()
                    return None
                raise BreakevenError(
                    "the process that runs the script has died",
                    hint="the machine may be out of memory; try a smaller batch",
                )
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class SpawnedProcesses(RunProcesses):
    """Runs each target in a new process that imports torch itself: see `server.run_once`.

    A run takes seconds longer than with fork, but needs only pipes, threads and processes. The
    script has no terminal.

    Args:
        keep: Side effects of the targets to keep.
        folder: Folder of temporary files.
    """

    def __init__(self, keep: Keep, folder: Path) -> None:
        self._keep = keep
        self._folder = folder
        output_fd, self._script_fd = os.pipe()
        self._waiter: threading.Thread | None = None
        super().__init__(_PipeOutput(output_fd))

    def ready(self) -> Ready:
        """Ask a separate process: querying some GPU types initializes them."""
        if self._ready is None:
            self._start(None)
        return super().ready()

    def begin(self, request: Request) -> None:
        """Start the process, and send the request once it has imported torch."""
        self._start(request)
        self._first_message(Started)
        self.output.clear()
        os.write(self._request_fd, msgspec.json.encode(request) + b"\n")

    def give_turn(self) -> None:
        """Start the next turn of the waiting run."""
        os.write(self._request_fd, b".")

    def end_run(self) -> None:
        """End the process of the run and all processes that it started."""
        if self._waiter is not None:
            if self._waiter.is_alive():
                end_tree(self.process)
                self._waiter.join()
            assert self.process.stdin is not None
            self.process.stdin.close()
            self._waiter = None

    def close(self) -> None:
        """End the run."""
        self.end_run()
        if self._script_fd >= 0:
            os.close(self._script_fd)
            self._script_fd = -1
        self.output.close()

    def receive(self, deadline_s: float) -> Message | None:
        """Return the next message, or None at the deadline."""
        # On Windows, Ctrl-C takes effect between two waits, not during one.
        while (left_s := deadline_s - monotonic()) > 0:
            with suppress(Empty):
                return self._messages.get(timeout=min(left_s, _POLL_S))
        return None

    def _start(self, request: Request | None) -> None:
        """Start a process for a request; without one, the process reports what is here."""
        self.end_run()
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        layer = None
        if request is not None:  # the process derives the same layer from the same request
            layer = Scratch(folder, self._keep, may_fork=False).layer_for(request)
        kind = "ready" if request is None else "once"
        self.process = process = subprocess.Popen(
            python_command("process.server", kind, msgspec.json.encode(self._keep).decode()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._script_fd,
            env=_run_environment(folder),
            **OF_ITS_OWN,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._request_fd, answers = process.stdin.fileno(), process.stdout
        self._messages = messages = SimpleQueue[Message]()

        def read() -> None:
            with answers:
                for line in answers:
                    message = _parse(line)
                    if message is not None:
                        messages.put(message)

        def wait() -> None:
            # Windows cannot wait for a pipe with a time limit, but for a queue.
            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            exit_code = process.wait()
            end_tree(process)  # for instance, a loader's workers
            end_run(str(folder))
            reader.join(_READ_LIMIT_S)
            writes = layer.writes() if layer is not None else None
            remove_tree(folder)
            messages.put(Ended(exit_code=exit_code, writes=writes))

        self._waiter = threading.Thread(target=wait, daemon=True)
        self._waiter.start()


class _PipeOutput(ScriptOutput):
    """Reads without asking for available data, which a pipe on Windows cannot tell.

    Args:
        fd: File descriptor to read.
    """

    def __init__(self, fd: int) -> None:
        self._came = threading.Event()
        super().__init__(fd)

    def close(self) -> None:
        """Read the rest, without waiting for a process that keeps the pipe open."""
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

"""Where the processes of runs come from, and what they say.

A server that has torch imported forks one for each run; where that is not possible, each run has a
new process.
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
# The server ends whatever the script has started; this is more than it takes at most.
END_LIMIT_S = 6.0
# How often it is looked after whether a process lives.
_POLL_S = 0.2
# How long to wait for the output and the pipe of a process that has ended: a process that has left
# the group of the run may have them open.
_OUTPUT_LIMIT_S = 0.5
_READ_LIMIT_S = 5.0
_First = TypeVar("_First", Ready, Started)
_MESSAGES = msgspec.json.Decoder(Message)


class RunProcesses(ABC):
    """Makes a process for each run, one at a time, and receives its messages.

    Args:
        output: What scripts print.
    """

    # Imports torch, and answers for the run.
    process: subprocess.Popen[Any]

    def __init__(self, output: ScriptOutput) -> None:
        self.output = output
        self._ready: Ready | None = None

    def ready(self) -> Ready:
        """Wait until torch is imported, and return what is said of it."""
        if self._ready is None:
            self._ready = self._first_message(Ready)
        return self._ready

    def _first_message(self, kind: type[_First]) -> _First:
        """Wait for a process that imports torch to speak.

        Raises:
            BreakevenError: It was ended, is late, or failed.
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
        """Return the next message, or None when the deadline passes first.

        ``Ended`` is the last of a run.

        Args:
            deadline_s: By `monotonic`.
        """


def _parse(line: bytes | bytearray) -> Message | None:
    """Return a message; None for a line that is empty, or that a script has written."""
    with suppress(ValueError):
        return _MESSAGES.decode(line)
    return None


def _run_environment(scratch: Path) -> dict[str, str]:
    """Return the variables of the processes in which targets run.

    Args:
        scratch: Folder of their temporary files, which marks them too.
    """
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "TQDM_DISABLE": "1",
        "TMPDIR": str(scratch),
        RUN_VARIABLE: str(scratch),
        # What is compiled once is there for every later run, as it is under plain Python.
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        or f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}",
    }


class ForkServer(RunProcesses):
    """Has runs forked by a process that has torch imported: see `server.serve`.

    Args:
        keep: What of the targets' side effects is to be real.
        folder: Of temporary files.
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
            start_new_session=True,  # Ctrl-C reaches us alone, and we end the rest
        )
        for fd in (*descriptors, script_fd):
            os.close(fd)
        self._folder = folder
        self._buffer = bytearray()
        self._child = 0
        super().__init__(ScriptOutput(output_fd, terminal))

    def begin(self, request: Request) -> None:
        """Ask the server for a process."""
        self.output.clear()
        os.write(self._request_fd, msgspec.json.encode(request) + b"\n")

    def give_turn(self) -> None:
        """Let the run that waits for its turn go on."""
        os.write(self._turn_fd, b".")

    def end_run(self) -> None:
        """End the script's own process; the server ends those that it has started."""
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)

    def close(self) -> None:
        """End the server and whatever runs."""
        if self._request_fd >= 0:
            for fd in (self._request_fd, self._turn_fd, self._answer_fd):
                os.close(fd)
            self._request_fd = -1
        if self._ready is None:  # there was no run yet
            self.process.kill()
        # Without its requests the server ends, and what runs before it.
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
        """Return the next message, or None when the deadline passes first."""
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
            # Processes that a script leaves may keep open what a dead server answered on.
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
        self._waiter: threading.Thread | None = None
        super().__init__(_PipeOutput(output_fd))

    def ready(self) -> Ready:
        """Ask a process of its own: to ask a GPU of some kinds is to begin to use it."""
        if self._ready is None:
            self._start(None)
        return super().ready()

    def begin(self, request: Request) -> None:
        """Start the process, and ask it once it has imported torch."""
        self._start(request)
        self._first_message(Started)
        self.output.clear()
        os.write(self._request_fd, msgspec.json.encode(request) + b"\n")

    def give_turn(self) -> None:
        """Let the run that waits for its turn go on."""
        os.write(self._request_fd, b".")

    def end_run(self) -> None:
        """End the process of the run, and all that it has started."""
        if self._waiter is not None:
            if self._waiter.is_alive():
                end_tree(self.process)
                self._waiter.join()
            assert self.process.stdin is not None
            self.process.stdin.close()
            self._waiter = None

    def close(self) -> None:
        """End whatever runs."""
        self.end_run()
        if self._script_fd >= 0:
            os.close(self._script_fd)
            self._script_fd = -1
        self.output.close()

    def receive(self, deadline_s: float) -> Message | None:
        """Return the next message, or None when the deadline passes first."""
        # On Windows, Ctrl-C is seen between two waits, and not within one.
        while (left_s := deadline_s - monotonic()) > 0:
            with suppress(Empty):
                return self._messages.get(timeout=min(left_s, _POLL_S))
        return None

    def _start(self, request: Request | None) -> None:
        """Start the process of a request, or of none, which tells what is here."""
        self.end_run()
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        layer = None
        if request is not None:  # the process finds the same by the same
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
            # A pipe cannot be waited for with a limit on Windows, but a queue can.
            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            exit_code = process.wait()
            end_tree(process)  # data loader workers, for instance
            end_run(str(folder))
            reader.join(_READ_LIMIT_S)
            writes = layer.writes() if layer is not None else None
            remove_tree(folder)
            messages.put(Ended(exit_code=exit_code, writes=writes))

        self._waiter = threading.Thread(target=wait, daemon=True)
        self._waiter.start()


class _PipeOutput(ScriptOutput):
    """Reads without asking first whether there is anything, which a pipe does not tell on Windows.

    Args:
        fd: Where it comes out.
    """

    def __init__(self, fd: int) -> None:
        self._came = threading.Event()
        super().__init__(fd, None)

    def close(self) -> None:
        """Read what is left, and wait for no process that keeps the pipe open."""
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

"""Start runs in child processes, listen to them, and leave none behind."""

from __future__ import annotations

import getpass
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator
from time import monotonic, sleep
from typing import Any

import msgspec

from breakeven.capture._protocol import (
    Answer,
    Ended,
    FailureKind,
    HostRequest,
    HostRun,
    Message,
    NumbersRun,
    Paused,
    PlainRun,
    ProbeRun,
    Ready,
    Request,
    RunFailure,
    RunRequest,
    Started,
    StepCount,
    TracedRun,
)
from breakeven.capture._script_terminal import ScriptTerminal, user_terminal_size
from breakeven.errors import BreakevenError
from breakeven.timing import TurnKind

_KEPT_OUTPUT_BYTES = 16_384
_START_LIMIT_S = 120.0
# The child ends itself at the time limit; it gets this much longer to say so.
_GRACE_S = 5.0
_HOST_LIMIT_S = 30.0
# How often a script that waits for input is looked after.
_POLL_S = 0.2
# How long nothing more must come for the output to be complete, and how long to wait for that.
_SETTLE_S = 0.01
_SETTLE_LIMIT_S = 0.5
# Escape sequences such as those of colours, and the backspaces of progress bars.
_STEERING = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|\x08"
)
_DECODER = msgspec.json.Decoder(Message)


class Launcher:
    """Runs targets in processes forked from a server that has torch imported.

    Use as a context manager: leaving it ends every process, also on Ctrl-C.
    """

    def __init__(self) -> None:
        request_read, self._request_fd = os.pipe()
        self._answer_fd, answer_write = os.pipe()
        turn_read, self._turn_fd = os.pipe()
        # A script that is stopped in mid-step leaves its temporary files behind.
        self._scratch = tempfile.TemporaryDirectory(prefix="breakeven-", ignore_cleanup_errors=True)
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "TQDM_DISABLE": "1",
            "TMPDIR": self._scratch.name,
            # What is compiled once is there for every later run, as it is under plain Python.
            "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR")
            or f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}",
        }
        size = user_terminal_size()
        terminal = ScriptTerminal(size) if size is not None else None
        output_fd, script_fd = (
            (terminal.our_end, terminal.scripts_end) if terminal is not None else os.pipe()
        )
        self._server = subprocess.Popen(
            [
                sys.executable,
                # No file in the current folder takes the place of a module of Python's or torch's.
                "-P",
                "-m",
                "breakeven.capture._server",
                str(request_read),
                str(answer_write),
                str(turn_read),
            ],
            stdin=script_fd if terminal is not None else subprocess.DEVNULL,
            stdout=script_fd,
            stderr=script_fd,
            pass_fds=(request_read, answer_write, turn_read),
            env=environment,
            start_new_session=True,  # Ctrl-C reaches us alone, and we end the rest
        )
        for fd in (request_read, answer_write, turn_read, script_fd):
            os.close(fd)
        self._buffer = b""
        self._child = 0
        self._output = _Tail(output_fd, terminal)
        self._ready: Ready | None = None

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def output(self) -> str:
        """Return the end of what the script printed in the last run."""
        return self._output.text()

    def ready(self) -> Ready:
        """Wait until torch is imported, and return what the server says of it."""
        if self._ready is None:
            message = self._receive(monotonic() + _START_LIMIT_S)
            if not isinstance(message, Ready):
                detail = self._output.text().strip()
                raise BreakevenError(
                    f"torch could not be imported by {sys.executable}"
                    + (f": {detail.splitlines()[-1]}" if detail else ""),
                    hint="run `python -c 'import torch'` with the same Python",
                )
            self._ready = message
        return self._ready

    def run(
        self, request: RunRequest, tell: Callable[[str], None] = lambda _: None
    ) -> PlainRun | TracedRun | RunFailure:
        """Run once, and return what came of it.

        Args:
            request: What to run.
            tell: Called now and then with how far the run is.
        """
        answer = self._ask(request, request.time_limit_s, tell)
        assert not isinstance(answer, HostRun | NumbersRun | ProbeRun)
        return answer

    def probe(self, request: RunRequest) -> ProbeRun | RunFailure:
        """Run the script as it is for a few steps, to see whether it fails by itself.

        Args:
            request: What to run, and how many steps.
        """
        assert request.num_probe_steps > 0
        answer = self._ask(request, request.time_limit_s, lambda _: None)
        assert isinstance(answer, ProbeRun | RunFailure)
        return answer

    def record_numbers(self, request: RunRequest) -> NumbersRun | RunFailure:
        """Run once, and have the losses and gradients of the first steps written to a file.

        Args:
            request: What to run, how many steps, and the file.
        """
        assert request.num_recorded_steps > 0
        answer = self._ask(request, request.time_limit_s, lambda _: None)
        assert isinstance(answer, NumbersRun | RunFailure)
        return answer

    def run_in_turns(self, request: RunRequest) -> Generator[None, None, Answer]:
        """Run once, one turn for each ``next``; the answer is what the generator returns.

        Another launcher's run goes on in between. See `alternate`.

        Args:
            request: What to run, and which turns it takes.
        """
        assert request.turns is not TurnKind.NONE
        return self._turns(request, request.time_limit_s, lambda _: None)

    def measure_host(self, num_rounds: int) -> HostRun:
        """Measure what this host spends to issue an operator.

        Args:
            num_rounds: Each measures everything once, in some 2 ms.

        Raises:
            BreakevenError: It did not come to an end.
        """
        answer = self._ask(HostRequest(num_rounds=num_rounds), _HOST_LIMIT_S, lambda _: None)
        if not isinstance(answer, HostRun):
            raise BreakevenError(
                "the costs of this host per operator could not be measured",
                hint="try again, or name another host with --host",
            )
        return answer

    def _ask(self, request: Request, limit_s: float, tell: Callable[[str], None]) -> Answer:
        turns = self._turns(request, limit_s, tell)
        while True:
            try:
                next(turns)
            except StopIteration as end:
                return end.value

    def _turns(
        self, request: Request, limit_s: float, tell: Callable[[str], None]
    ) -> Generator[None, None, Answer]:
        self.ready()
        self._output.clear()
        os.write(self._request_fd, msgspec.json.encode(request) + b"\n")
        deadline_s = monotonic() + limit_s + _GRACE_S
        answer: Answer | None = None
        while True:
            message = self._receive(deadline_s)
            if isinstance(message, Started):
                self._child = message.process
            elif isinstance(message, StepCount):
                tell(message.text)
            elif isinstance(message, Paused):
                paused_s = monotonic()
                yield
                deadline_s += monotonic() - paused_s
                os.write(self._turn_fd, b".")
            elif isinstance(message, Answer):
                answer = message
            elif isinstance(message, Ended):
                self._child = 0
                return answer or _killed(message.exit_code)
            elif message is None:  # it does not answer: stuck in C, or stopped
                self._end_child()
                deadline_s = monotonic() + _GRACE_S
                answer = answer or RunFailure(kind=FailureKind.TIME_LIMIT, message=f"{limit_s:g} s")

    def close(self) -> None:
        """End the server and whatever runs."""
        self._end_child()
        if self._request_fd >= 0:
            os.close(self._request_fd)
            os.close(self._turn_fd)
            self._request_fd = -1
        # Without its requests the server ends, after the run that it may just have started.
        try:
            self._server.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._output.close()
        self._scratch.cleanup()
        if self._answer_fd >= 0:
            os.close(self._answer_fd)
            self._answer_fd = -1

    def _end_child(self) -> None:
        if self._child:
            try:
                os.killpg(self._child, signal.SIGKILL)
            except ProcessLookupError:
                return

    def _receive(self, deadline_s: float) -> Any:
        """Return the next message, or None when the deadline passes first."""
        while b"\n" not in self._buffer:
            readable, _, _ = select.select(
                [self._answer_fd], [], [], max(0.0, deadline_s - monotonic())
            )
            if not readable:
                return None
            data = os.read(self._answer_fd, 1 << 16)
            if not data:
                if self._ready is None:
                    self._server.wait()
                    self._output.close()
                    return None
                raise BreakevenError(
                    "the process that runs the script has died",
                    hint="the machine may be out of memory; try a smaller batch",
                )
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return _DECODER.decode(line)


def _killed(exit_code: int) -> RunFailure:
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        return RunFailure(kind=FailureKind.KILLED, message=name)
    return RunFailure(kind=FailureKind.EXIT, message=str(exit_code))


class _Tail:
    """Reads what a script prints to its end in a thread, and keeps only the last of it.

    Args:
        fd: Where it comes out.
        terminal: What it is printed to, whose input is to be empty; None for a pipe.
    """

    def __init__(self, fd: int, terminal: ScriptTerminal | None) -> None:
        self._fd = fd
        self._terminal = terminal
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Return what is kept, as text without what steers a terminal."""
        # A terminal hands on what is written to it a little later.
        deadline_s = monotonic() + _SETTLE_LIMIT_S
        while self._thread.is_alive() and monotonic() < deadline_s and self._has_more(_SETTLE_S):
            sleep(_SETTLE_S)
        with self._lock:
            kept = b"".join(self._chunks)[-_KEPT_OUTPUT_BYTES:]
        return _STEERING.sub("", kept.decode(errors="replace"))

    def clear(self) -> None:
        """Forget what is kept."""
        with self._lock:
            self._chunks.clear()
            self._size = 0

    def close(self) -> None:
        """Read what is left, and end."""
        self._is_closed = True
        self._thread.join()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        checked_s = monotonic()
        while True:
            # Whoever outlives the run may still have it open, but is not listened to.
            has_more = self._has_more(0.0 if self._is_closed else _POLL_S)
            if not has_more and self._is_closed:
                return
            if self._terminal is not None and monotonic() - checked_s >= _POLL_S:
                self._terminal.end_input()
                checked_s = monotonic()
            if has_more and not self._keep():
                return

    def _has_more(self, wait_s: float) -> bool:
        return bool(select.select([self._fd], [], [], wait_s)[0])

    def _keep(self) -> bool:
        """Keep what there is to read; return False at the end."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:  # the end of a terminal that nobody has open any more
            data = b""
        with self._lock:
            if data:
                self._chunks.append(data)
                self._size += len(data)
            while self._chunks and self._size - len(self._chunks[0]) > _KEPT_OUTPUT_BYTES:
                self._size -= len(self._chunks.popleft())
        return bool(data)

"""Start runs in child processes, listen to them, and leave none behind."""

from __future__ import annotations

import getpass
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from breakeven.capture.keep import KEEP_NOTHING, Keep
from breakeven.capture.process.descendants import RUN_VARIABLE, end_run
from breakeven.capture.process.script_output import ScriptOutput
from breakeven.capture.process.script_terminal import ScriptTerminal, user_terminal_size
from breakeven.capture.protocol import (
    CUT_OFF_STATUS,
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
    Trackers,
)
from breakeven.errors import BreakevenError
from breakeven.timing import TurnKind
from breakeven.trace import FileWrites

START_LIMIT_S = 120.0
# The child ends itself at the time limit; it gets this much longer to say so.
GRACE_S = 5.0
_HOST_LIMIT_S = 30.0
# The server ends whatever the script has started; this is more than it takes at most.
_END_LIMIT_S = 6.0
# How often it is looked after whether the server lives.
_POLL_S = 0.2
MESSAGES = msgspec.json.Decoder(Message)


class Launcher:
    """Runs targets in processes forked from a server that has torch imported.

    Use as a context manager: leaving it ends every process, also on Ctrl-C, and those too that the
    script has put in a session of their own (on Linux). Where processes cannot be forked, it is a
    `SpawningLauncher`.

    Args:
        keep: What of the targets' side effects is to be real.
    """

    def __new__(cls, *_: Keep, **__: Keep) -> Launcher:
        """Choose as `pathlib.Path` does: by what the system can do."""
        if _can_fork():
            return super().__new__(cls)
        from breakeven.capture.process.spawning_launcher import (
            SpawningLauncher,  # is a launcher itself
        )

        return object.__new__(SpawningLauncher)

    def __init__(self, keep: Keep = KEEP_NOTHING) -> None:
        request_read, self._request_fd = os.pipe()
        self._answer_fd, answer_write = os.pipe()
        turn_read, self._turn_fd = os.pipe()
        size = user_terminal_size()
        terminal = ScriptTerminal(size) if size is not None else None
        output_fd, script_fd = (
            (terminal.our_end, terminal.scripts_end) if terminal is not None else os.pipe()
        )
        # A script that is stopped in mid-step leaves its temporary files behind.
        self._scratch = tempfile.TemporaryDirectory(prefix="breakeven-", ignore_cleanup_errors=True)
        self._server = subprocess.Popen(
            [
                sys.executable,
                # No file in the current folder takes the place of a module of Python's or torch's.
                "-P",
                "-m",
                "breakeven.capture.process.server",
                str(request_read),
                str(answer_write),
                str(turn_read),
                msgspec.json.encode(keep).decode(),
            ],
            stdin=script_fd if terminal is not None else subprocess.DEVNULL,
            stdout=script_fd,
            stderr=script_fd,
            pass_fds=(request_read, answer_write, turn_read),
            env=run_environment(self._scratch.name),
            start_new_session=True,  # Ctrl-C reaches us alone, and we end the rest
        )
        for fd in (request_read, answer_write, turn_read, script_fd):
            os.close(fd)
        self._buffer = bytearray()
        self._child = 0
        self._output = ScriptOutput(output_fd, terminal)
        self._ready: Ready | None = None
        self._writes: FileWrites | None = None
        self._quiet_trackers: dict[str, None] = {}

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """Return where temporary files go; they are removed also when this process is killed."""
        return Path(self._scratch.name)

    @property
    def output(self) -> str:
        """Return the end of what the script printed in the last run."""
        return self._output.text()

    @property
    def writes(self) -> FileWrites | None:
        """Return what was written by the run that wrote the most files; None before the first."""
        return self._writes

    @property
    def quiet_trackers(self) -> tuple[str, ...]:
        """Return the names of the trackers that logged nothing in the runs until now."""
        return tuple(self._quiet_trackers)

    def ready(self) -> Ready:
        """Wait until torch is imported, and return what the server says of it."""
        if self._ready is None:
            message = self._receive(monotonic() + START_LIMIT_S)
            if not isinstance(message, Ready):
                raise self._not_ready()
            self._ready = message
        return self._ready

    def _not_ready(self) -> BreakevenError:
        """Return why torch is not imported: the server was ended, is late, or failed."""
        status = self._server.poll()
        if status is None:
            message = f"torch was not imported by {sys.executable} within {START_LIMIT_S:g} s"
            hint = "try again when the machine, or the disk that torch lies on, is less busy"
        elif status < 0:
            name = signal.Signals(-status).name
            message = f"the process that imports torch was ended by signal {name}"
            hint = "the machine may be out of memory; or somebody has ended it: try again"
        else:
            told = "".join(f": {line}" for line in self._output.text().strip().splitlines()[-1:])
            message = f"torch could not be imported by {sys.executable}{told}"
            hint = "run `python -c 'import torch'` with the same Python"
        return BreakevenError(message, hint=hint)

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
        deadline_s = monotonic() + limit_s + GRACE_S
        answer: Answer | None = None
        is_late = False
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
            elif isinstance(message, Trackers):
                self._quiet_trackers.update(dict.fromkeys(message.quiet))
            elif isinstance(message, Answer):
                answer = message
            elif isinstance(message, Ended):
                self._child = 0
                self._writes = _more(self._writes, message.writes)
                return answer or _killed(message.exit_code)
            elif message is None:  # it does not answer: stuck in C, or stopped
                if is_late:
                    self._server.kill()
                    raise BreakevenError(
                        "the process that runs the script does not answer any more",
                        hint="the script may have stopped the process that has started it",
                    )
                is_late = True
                self._end_child()
                deadline_s = monotonic() + _END_LIMIT_S
                answer = answer or RunFailure(kind=FailureKind.TIME_LIMIT, message=f"{limit_s:g} s")

    def close(self) -> None:
        """End the server and whatever runs."""
        if self._request_fd >= 0:
            for fd in (self._request_fd, self._turn_fd, self._answer_fd):
                os.close(fd)
            self._request_fd = -1
        if self._ready is None:  # there was no run yet
            self._server.kill()
        # Without its requests the server ends, and what runs before it.
        try:
            self._server.wait(timeout=_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        if self._server.returncode:
            self._end_child()
            end_run(self._scratch.name)
        self._output.close()
        self._scratch.cleanup()

    def _end_child(self) -> None:
        """End the script's own process; the server ends those that it has started."""
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)

    def _receive(self, deadline_s: float) -> Any:
        """Return the next message, or None when the deadline passes first."""
        while (line := self._receive_line(deadline_s)) is not None:
            with suppress(ValueError):  # empty, or a script has written it
                return MESSAGES.decode(line)
        return None

    def _receive_line(self, deadline_s: float) -> bytearray | None:
        num_searched = 0
        while self._buffer.find(b"\n", num_searched) < 0:
            num_searched = len(self._buffer)
            wait_s = max(0.0, min(_POLL_S, deadline_s - monotonic()))
            readable, _, _ = select.select([self._answer_fd], [], [], wait_s)
            # Processes that a script leaves may keep open what a dead server answered on.
            has_died = not readable and self._server.poll() is not None
            if not readable and not has_died:
                if monotonic() < deadline_s:
                    continue
                return None
            data = b"" if has_died else os.read(self._answer_fd, 1 << 16)
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
        return line


def _can_fork() -> bool:
    """Return whether a process with torch in it may be forked.

    Windows has no fork; on macOS, the system's own libraries do not bear it once they have threads.

    Source: Python's documentation of `multiprocessing`, "Contexts and start methods".
    """
    is_asked = bool(os.environ.get("BREAKEVEN_SPAWN"))
    return hasattr(os, "fork") and sys.platform != "darwin" and not is_asked


def run_environment(scratch: str) -> dict[str, str]:
    """Return the variables of the processes in which targets run.

    Args:
        scratch: Folder of their temporary files, which marks them too.
    """
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "TQDM_DISABLE": "1",
        "TMPDIR": scratch,
        RUN_VARIABLE: scratch,
        # What is compiled once is there for every later run, as it is under plain Python.
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        or f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}",
    }


def _more(known: FileWrites | None, new: FileWrites | None) -> FileWrites | None:
    if known is None or new is None:
        return known or new
    return max(known, new, key=lambda writes: (writes.num_files, writes.num_bytes))


def _killed(exit_code: int) -> RunFailure:
    if exit_code < 0:
        return RunFailure(kind=FailureKind.KILLED, message=signal.Signals(-exit_code).name)
    kind = FailureKind.CUT_OFF if exit_code == CUT_OFF_STATUS else FailureKind.EXIT
    return RunFailure(kind=kind, message=str(exit_code))

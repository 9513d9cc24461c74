"""Starts runs in child processes, receives their messages, and leaves no process behind.

Also runs a script to its end in a child process.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from time import monotonic

from msgspec.structs import replace

from breakeven.capture.messages import (
    KEEP_NOTHING,
    PIPE_CLOSED_STATUS,
    Answer,
    Ended,
    FailureKind,
    HostRequest,
    HostRun,
    Keep,
    NumbersRun,
    Paused,
    PlainRun,
    RatesRequest,
    RatesRun,
    Ready,
    Request,
    RunFailure,
    RunRequest,
    StepCount,
    TracedRun,
)
from breakeven.capture.process.children import (
    OF_ITS_OWN,
    RUN_VARIABLE,
    end_run,
    end_tree,
    python_command,
)
from breakeven.capture.process.run_processes import END_LIMIT_S, ForkServer, SpawnedProcesses
from breakeven.errors import BreakevenError, ScriptError
from breakeven.simulate import CpuRates
from breakeven.timing import TurnKind
from breakeven.trace import FileWrites

# The child ends itself at the time limit; allow it this extra time to report that.
_GRACE_S = 5.0
_HOST_LIMIT_S = 30.0


class Launcher:
    """Runs targets in child processes, and leaves none behind.

    Use as a context manager: on exit it ends every process, also after Ctrl-C. On Linux that
    includes processes that the script moved to another session.

    Args:
        keep: Side effects of the targets to keep.
    """

    def __init__(self, keep: Keep = KEEP_NOTHING) -> None:
        # A script stopped in mid-step leaves its temporary files behind.
        self._scratch = tempfile.TemporaryDirectory(prefix="breakeven-", ignore_cleanup_errors=True)
        kind = ForkServer if _can_fork() else SpawnedProcesses
        self._processes = kind(keep, self.folder)
        # Writes of the run that wrote the most files; None before the first run.
        self.writes: FileWrites | None = None

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """Return the folder of temporary files, which is removed even if this process is killed."""
        return Path(self._scratch.name)

    @property
    def output(self) -> str:
        """Return the end of the script's output in the last run."""
        return self._processes.output.text()

    def ready(self) -> Ready:
        """Wait until torch is imported, and return the facts about it and this machine."""
        return self._processes.ready()

    def run(
        self, request: RunRequest, tell: Callable[[str], None] = lambda _: None
    ) -> PlainRun | TracedRun | RunFailure:
        """Run once, and return the result.

        Args:
            request: The run.
            tell: Progress callback; receives a text for the user.
        """
        answer = self._ask(request, tell)
        assert not isinstance(answer, HostRun | RatesRun | NumbersRun)
        return answer

    def probe(self, request: RunRequest) -> RunFailure:
        """Run the unmodified script to its end or the time limit; the failure has its steps.

        Args:
            request: The run.
        """
        answer = self._ask(replace(request, is_probe=True))
        assert isinstance(answer, RunFailure)
        return answer

    def record_numbers(self, request: RunRequest) -> NumbersRun | RunFailure:
        """Run once, and write the losses and gradients of the first steps to a file.

        Args:
            request: The run, with the number of steps and the file.
        """
        assert request.num_recorded_steps > 0
        answer = self._ask(request)
        assert isinstance(answer, NumbersRun | RunFailure)
        return answer

    def run_in_turns(self, request: RunRequest) -> Generator[None, None, Answer]:
        """Run once, one turn per ``next``; the generator returns the answer.

        Another launcher's run continues in between. See `alternate`.

        Args:
            request: The run, with the kind of its turns.
        """
        assert request.turns is not TurnKind.NONE
        return self._turns(request)

    def measure_host(self, num_rounds: int) -> HostRun:
        """Measure this host's cost to issue an operator.

        Args:
            num_rounds: Number of rounds; each measures every cost once, in some 2 ms.

        Raises:
            BreakevenError: The measurement did not finish.
        """
        answer = self._ask(HostRequest(num_rounds=num_rounds))
        if not isinstance(answer, HostRun):
            raise BreakevenError(
                "the costs of this host per operator could not be measured",
                hint="try again, or name another host with --host",
            )
        return answer

    def measure_cpu_rates(self) -> CpuRates:
        """Measure the compute rate and bandwidth of one CPU core, in well under a second.

        Raises:
            BreakevenError: The measurement did not finish.
        """
        answer = self._ask(RatesRequest())
        if not isinstance(answer, RatesRun):
            raise BreakevenError(
                "the rates of this CPU could not be measured", hint="try again, or name GPUs alone"
            )
        return answer.rates

    def _ask(self, request: Request, tell: Callable[[str], None] = lambda _: None) -> Answer:
        turns = self._turns(request, tell)
        while True:
            try:
                next(turns)
            except StopIteration as end:
                return end.value

    def _turns(
        self, request: Request, tell: Callable[[str], None] = lambda _: None
    ) -> Generator[None, None, Answer]:
        limit_s = request.time_limit_s if isinstance(request, RunRequest) else _HOST_LIMIT_S
        processes = self._processes
        processes.ready()
        processes.begin(request)
        deadline_s = monotonic() + limit_s + _GRACE_S
        answer: Answer | None = None
        is_late = False
        while True:
            message = processes.receive(deadline_s)
            if isinstance(message, StepCount):
                tell(message.text)
            elif isinstance(message, Paused):
                paused_s = monotonic()
                yield
                deadline_s += monotonic() - paused_s
                processes.give_turn()
            elif isinstance(message, Answer):
                answer = message
            elif isinstance(message, Ended):
                runs = [writes for writes in (self.writes, message.writes) if writes is not None]
                self.writes = max(
                    runs, key=lambda each: (each.num_files, each.num_bytes), default=None
                )
                code = message.exit_code
                if answer is None and code < 0:
                    name = signal.Signals(-code).name
                    answer = RunFailure(kind=FailureKind.KILLED, message=name)
                kind = FailureKind.PIPE_CLOSED if code == PIPE_CLOSED_STATUS else FailureKind.EXIT
                return answer or RunFailure(kind=kind, message=str(code))
            elif message is None:  # the process does not answer: stuck in C, or stopped
                if is_late:
                    processes.process.kill()
                    raise BreakevenError(
                        "the process that runs the script stopped answering",
                        hint="the script may have stopped its parent process",
                    )
                is_late = True
                processes.end_run()
                deadline_s = monotonic() + END_LIMIT_S
                answer = answer or RunFailure(kind=FailureKind.TIME_LIMIT, message=f"{limit_s:g} s")

    def close(self) -> None:
        """End all running processes."""
        self._processes.close()
        self._scratch.cleanup()


def _can_fork() -> bool:
    """Return whether a process that imported torch may be forked.

    Windows has no fork. On macOS, the system's libraries fail in a fork once they have threads.

    Source: Python's documentation of `multiprocessing`, "Contexts and start methods".
    """
    is_asked = bool(os.environ.get("BREAKEVEN_SPAWN"))
    return hasattr(os, "fork") and sys.platform != "darwin" and not is_asked


_KEPT_CHARACTERS = 4_000


def run_on_fake_gpus(
    script: Path,
    arguments: Sequence[str] = (),
    *,
    num_devices: int = 1,
    time_limit_s: float = 120.0,
) -> str:
    """Run a script to its end on fake GPUs, and return its output.

    See `fake_gpus` for their behaviour.

    Args:
        script: Path of the script.
        arguments: ``sys.argv[1:]`` of the script.
        num_devices: Number of fake GPUs.
        time_limit_s: Seconds until the script is stopped.

    Raises:
        ScriptError: The script failed.
        BreakevenError: The script did not end in time.
    """
    command = python_command("pretend.fake_cuda", str(num_devices), str(script), *arguments)
    return _run(command, script, time_limit_s)


def run_script(script: Path, arguments: Sequence[str] = (), *, time_limit_s: float = 120.0) -> str:
    """Run an unmodified script to its end, and return its output.

    Args:
        script: Path of the script.
        arguments: ``sys.argv[1:]`` of the script.
        time_limit_s: Seconds until the script is stopped.

    Raises:
        ScriptError: The script failed.
        BreakevenError: The script did not end in time.
    """
    return _run([sys.executable, str(script), *arguments], script, time_limit_s)


def _run(command: Sequence[str], script: Path, time_limit_s: float) -> str:
    mark = secrets.token_hex(8)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        env={**os.environ, RUN_VARIABLE: mark},
        **OF_ITS_OWN,
    )
    try:
        output, complaints = process.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        raise BreakevenError(
            f"{script.name} did not end within {time_limit_s:g} s", hint="raise --time-limit"
        ) from None
    finally:
        if process.poll() is None:
            end_tree(process)
            process.communicate()
        end_run(mark)
    if process.returncode:
        last = (complaints.strip() or output.strip() or "no message").splitlines()[-1]
        raise ScriptError(
            f"{script.name} ended with status {process.returncode}: {last}",
            hint=f"run it without breakeven: python {script}",
            output=(output + complaints)[-_KEPT_CHARACTERS:],
        )
    return output

"""Start runs in child processes, listen to them, and leave none behind.

And run a script to its end: in a process of its own, or in the place of this one.
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
    ProbeRun,
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

# The child ends itself at the time limit; it gets this much longer to say so.
_GRACE_S = 5.0
_HOST_LIMIT_S = 30.0


class Launcher:
    """Runs targets in processes of their own, and leaves none behind.

    Use as a context manager: leaving it ends every process, also on Ctrl-C, and those too that the
    script has put in a session of their own (on Linux).

    Args:
        keep: What of the targets' side effects is to be real.
    """

    def __init__(self, keep: Keep = KEEP_NOTHING) -> None:
        # A script that is stopped in mid-step leaves its temporary files behind.
        self._scratch = tempfile.TemporaryDirectory(prefix="breakeven-", ignore_cleanup_errors=True)
        kind = ForkServer if _can_fork() else SpawnedProcesses
        self._processes = kind(keep, self.folder)
        # By the run that wrote the most files; None before the first.
        self.writes: FileWrites | None = None

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
        return self._processes.output.text()

    def ready(self) -> Ready:
        """Wait until torch is imported, and return what is known of it and of this machine."""
        return self._processes.ready()

    def run(
        self, request: RunRequest, tell: Callable[[str], None] = lambda _: None
    ) -> PlainRun | TracedRun | RunFailure:
        """Run once, and return what came of it.

        Args:
            request: What to run.
            tell: Progress callback: gets a text for a person.
        """
        answer = self._ask(request, tell)
        assert not isinstance(answer, HostRun | RatesRun | NumbersRun | ProbeRun)
        return answer

    def probe(self, request: RunRequest) -> ProbeRun | RunFailure:
        """Run the script as it is until it has taken a number of steps, or ends.

        Args:
            request: What to run, and how many steps.
        """
        assert request.num_probe_steps > 0
        answer = self._ask(request)
        assert isinstance(answer, ProbeRun | RunFailure)
        return answer

    def record_numbers(self, request: RunRequest) -> NumbersRun | RunFailure:
        """Run once, and have the losses and gradients of the first steps written to a file.

        Args:
            request: What to run, how many steps, and the file.
        """
        assert request.num_recorded_steps > 0
        answer = self._ask(request)
        assert isinstance(answer, NumbersRun | RunFailure)
        return answer

    def run_in_turns(self, request: RunRequest) -> Generator[None, None, Answer]:
        """Run once, one turn for each ``next``; the answer is what the generator returns.

        Another launcher's run goes on in between. See `alternate`.

        Args:
            request: What to run, and which turns it takes.
        """
        assert request.turns is not TurnKind.NONE
        return self._turns(request)

    def measure_host(self, num_rounds: int) -> HostRun:
        """Measure what this host spends to issue an operator.

        Args:
            num_rounds: Each measures everything once, in some 2 ms.

        Raises:
            BreakevenError: It did not come to an end.
        """
        answer = self._ask(HostRequest(num_rounds=num_rounds))
        if not isinstance(answer, HostRun):
            raise BreakevenError(
                "the costs of this host per operator could not be measured",
                hint="try again, or name another host with --host",
            )
        return answer

    def measure_cpu_rates(self) -> CpuRates:
        """Measure what one core of this CPU computes and moves, in well under a second.

        Raises:
            BreakevenError: It did not come to an end.
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
            elif message is None:  # it does not answer: stuck in C, or stopped
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
        """End whatever runs."""
        self._processes.close()
        self._scratch.cleanup()


def _can_fork() -> bool:
    """Return whether a process with torch in it may be forked.

    Windows has no fork; on macOS, the system's own libraries do not bear it once they have threads.

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
    """Run a script to its end on GPUs that are not there, and return what it printed.

    See `fake_gpus` for what it meets.

    Args:
        script: Its file.
        arguments: ``sys.argv[1:]`` of the script.
        num_devices: How many GPUs there are.
        time_limit_s: When it is ended.

    Raises:
        ScriptError: It failed.
        BreakevenError: It did not end in time.
    """
    command = python_command("pretend.fake_cuda", str(num_devices), str(script), *arguments)
    return _run(command, script, time_limit_s)


def run_script(script: Path, arguments: Sequence[str] = (), *, time_limit_s: float = 120.0) -> str:
    """Run a script to its end as it is, and return what it printed.

    Args:
        script: Its file.
        arguments: ``sys.argv[1:]`` of the script.
        time_limit_s: When it is ended.

    Raises:
        ScriptError: It failed.
        BreakevenError: It did not end in time.
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

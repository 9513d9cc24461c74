"""Runs the user's script to its end under a configuration, instead of plain Python.

The command's process becomes the script's, or first replaces itself by ``python -P -m
breakeven.capture.process.run_to_end REQUEST TARGET [ARGUMENT ...]``. Standard streams, process id,
signals and exit status are the script's own, and no process remains after it.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from time import monotonic
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO

import msgspec

from breakeven.capture.process.as_main import run_as_main
from breakeven.capture.process.children import python_command
from breakeven.errors import BreakevenError
from breakeven.trace import Configuration
from breakeven.units import NS_PER_S, format_digits, format_duration
from faststep import FastStepError

if TYPE_CHECKING:
    from breakeven.settings import configured


_DRAW_EVERY_S = 0.2
# Number of draws that average the speed: some ten seconds, so that the speed follows a change.
_NUM_DRAWS = 50
_WIPE = b"\r\x1b[2K"


class EndRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a script to its end.

    Args:
        is_module: Whether the target is a module's name.
        device: Device of the step; for ``cpu``, CUDA is hidden.
        has_cuda: Run CUDA calls on the CPU, and make ``torch.cuda.is_available()`` return True, for
            scripts that refuse to run without a GPU.
        configuration: Settings in effect around the script.
        num_steps: Number of steps in the run; 0 if unknown.
        is_quiet: Write none of breakeven's own output.
        pays_after_s: Start one-time costs, such as compiling, after this time of steps; 0 to start
            at once.
        pays_after_steps: Least number of steps before they start.
    """

    is_module: bool
    device: Literal["cpu", "gpu"]
    has_cuda: bool
    configuration: Configuration
    num_steps: int
    is_quiet: bool
    pays_after_s: float = 0.0
    pays_after_steps: int = 0


def become_script(request: EndRequest, target: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by one that runs the script to its end.

    On Windows, the parent sees a replaced process as ended, so this process stays and waits.

    Args:
        request: How to run it.
        target: Path of the script, or name of the module.
        arguments: ``sys.argv[1:]`` of the script.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    request_text = msgspec.json.encode(request).decode()
    command = python_command("process.run_to_end", request_text, target, *arguments)
    if not hasattr(os, "fork"):
        sys.exit(subprocess.call(command))
    os.execv(sys.executable, command)


def settings_text(configuration: Configuration) -> str:
    """Return a configuration as one line: ``num_threads=1, optimizer=fused``."""
    changes = (
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in configuration.changes.items()
    )
    return ", ".join(changes) or "as the script is"


class StepCounter:
    """Counts training steps; if several optimizers take turns, one round of them is a step."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._round: set[int] = set()
        self._first_s = self._last_s = 0.0

    @property
    def steps_per_s(self) -> float:
        """Return the speed from the first step to the last; 0 with fewer than two steps."""
        elapsed_s = self._last_s - self._first_s
        return (self.num_steps - 1) / elapsed_s if elapsed_s > 0 else 0.0

    def count(self, optimizer: int, now_s: float) -> None:
        """Note an update.

        Args:
            optimizer: Identifies the optimizer.
            now_s: Time of its end, in seconds.
        """
        if optimizer in self._round:
            self._round.clear()
        self._round.add(optimizer)
        if len(self._round) == 1:
            self.num_steps += 1
            self._first_s = self._first_s or now_s
            self._last_s = now_s


class LiveLine:
    """The progress line, on a terminal that it shares with the script.

    Args:
        counter: Counter of the steps.
        device: ``cpu`` or ``gpu``.
        num_steps: Number of steps in the run; 0 if unknown.
        stream: The terminal.
    """

    def __init__(self, counter: StepCounter, device: str, num_steps: int, stream: TextIO) -> None:
        self._counter = counter
        self._device = device
        self._num_steps = num_steps
        self._fd = stream.fileno()
        self._start_s = monotonic()
        self._next_s = 0.0
        self._draws: deque[tuple[float, int]] = deque(maxlen=_NUM_DRAWS)
        # Shared with forked processes that print too, such as a DataLoader's workers: whether the
        # line is shown, and whether the cursor is not at the start of a line.
        self._state = mmap.mmap(-1, 2)
        self._lock = threading.RLock()
        self._is_on = True
        self._unwatch = contextlib.ExitStack()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._leave_to_parent)
        for output in (sys.stdout, sys.stderr):
            self._watch(output)

    def update(self, now_s: float) -> None:
        """Redraw the line if it is due.

        Args:
            now_s: Current time, in seconds.
        """
        if now_s < self._next_s or not self._is_on:
            return
        self._next_s = now_s + _DRAW_EVERY_S
        self._draws.append((now_s, self._counter.num_steps))
        if len(self._draws) > 1 and not self._state[1]:
            with self._lock:
                self._write(_WIPE + self._text(now_s).encode())
                self._state[0] = 1

    def end(self) -> None:
        """Wipe the line for good, and stop watching the terminal."""
        self._wipe()
        self._is_on = False
        self._unwatch.close()

    def _text(self, now_s: float) -> str:
        """Return the line in ASCII, which every terminal shows."""
        (earlier_s, earlier), (later_s, later) = self._draws[0], self._draws[-1]
        rate = (later - earlier) / (later_s - earlier_s)
        parts = [f"{format_digits(rate)} it/s", self._device]
        if self._num_steps:
            left = max(0, self._num_steps - later)
            parts.append(f"{later:,} of {self._num_steps:,} steps")
            if rate > 0:
                parts.append(f"{_clock(left / rate)} left")
        else:
            parts += [f"{later:,} steps", _clock(now_s - self._start_s)]
        return f"breakeven: {' | '.join(parts)}"[: self._width() - 1]

    def _width(self) -> int:
        with contextlib.suppress(KeyError, ValueError):
            return max(2, int(os.environ["COLUMNS"]))
        with contextlib.suppress(OSError):
            return os.get_terminal_size(self._fd).columns or 80
        return 80

    def _wipe(self) -> None:
        if self._state[0]:
            with self._lock:
                self._state[0] = 0
                self._write(_WIPE)

    def _write(self, data: bytes) -> None:
        try:
            os.write(self._fd, data)
        except OSError:  # the terminal is closed
            self._is_on = False

    def _watch(self, stream: Any) -> None:
        """Wipe the line before a stream writes to the same terminal.

        The method patches the lowest Python object. All prints, logs and older references to the
        stream end there, and the stream keeps its type and identity.
        """
        try:
            if os.fstat(stream.fileno()).st_rdev != os.fstat(self._fd).st_rdev:
                return
            # The `buffer` of an unbuffered stream is the raw stream itself.
            raw = getattr(stream.buffer, "raw", stream.buffer)
        except (AttributeError, OSError, ValueError):
            return  # the stream is missing or closed
        write, flush = raw.write, stream.flush

        def write_after_wiping(data: Any) -> Any:
            with self._lock:
                self._wipe()
                num_bytes = write(data)
                if num_bytes:
                    self._state[1] = bytes(data[num_bytes - 1 : num_bytes]) != b"\n"
                return num_bytes

        def flush_and_wipe() -> None:
            # input() flushes, and then the C library writes its prompt.
            self._wipe()
            flush()

        raw.write, stream.flush = write_after_wiping, flush_and_wipe
        self._unwatch.callback(delattr, raw, "write")
        self._unwatch.callback(delattr, stream, "flush")

    def _leave_to_parent(self) -> None:
        self._is_on = False
        # Another thread of the parent may have held the old lock.
        self._lock = threading.RLock()


def _clock(duration_s: float) -> str:
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class _RunToEnd:
    """One run, from the script's import of torch to its end."""

    def __init__(self, request: EndRequest) -> None:
        self._request = request
        self._start_s = monotonic()
        self._process = os.getpid()
        self._effects = ExitStack()
        self._counter = StepCounter()
        self._line: LiveLine | None = None
        self._configured: configured | None = None
        self._is_given_up = False
        self._end_update: Callable[[int], None] = self._note_update
        # Registered before the script's handlers, so called after them.
        atexit.register(self._end)

    def prepare(self) -> None:
        """Prepare the process before torch is imported."""
        if self._request.device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if not self._request.is_quiet and _is_live_terminal():
            self._line = LiveLine(
                self._counter, self._request.device, self._request.num_steps, sys.stderr
            )
        # Do not import torch earlier: it reads OMP_NUM_THREADS, which a script may set first.
        sys.meta_path.insert(0, _AfterTorch(self._configure))

    def _configure(self, torch: ModuleType) -> None:
        """Apply the settings after torch is imported."""
        request = self._request
        from torch.optim.optimizer import register_optimizer_step_post_hook

        from breakeven.capture.gpus import other_gpu_here

        # Run as measured: torch.compile fails with the replaced functions, so it is ignored.
        if request.has_cuda:
            from breakeven.capture.pretend.cuda_graphs import CudaGraphs
            from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu

            graphs = CudaGraphs(self._note_update)
            self._effects.enter_context(redirect_cuda_to_cpu(has_cuda=True, graphs=graphs))
            self._end_update = graphs.end_update
        if request.device == "cpu" and other_gpu_here():
            from breakeven.capture.pretend.cuda_api import hide_other_gpus
            from breakeven.configure import Patches

            hide_other_gpus(self._effects.enter_context(Patches()))
        if request.configuration.changes:
            from breakeven.settings import configured

            self._configured = self._effects.enter_context(
                configured(
                    request.configuration,
                    device="cuda" if request.device == "gpu" else "cpu",
                    on_given_up=self._note_given_up,
                    pays_after_s=request.pays_after_s,
                    pays_after_steps=request.pays_after_steps,
                )
            )
        if request.has_cuda or not request.is_quiet:
            register_optimizer_step_post_hook(lambda made, *_: self._end_update(id(made)))

    def code_of(self, text: bytes, file: str) -> CodeType | None:
        """Return a script's code with its step as one call, if requested and possible."""
        if not self._request.configuration.fast_step:
            return None
        from breakeven.rewrite import NoPatch, code_of_fast_step

        code = code_of_fast_step(text, file)
        if isinstance(code, NoPatch):
            self._note_given_up(code.reason)
            return None
        return code

    def _note_given_up(self, reason: str) -> None:
        self._is_given_up = True
        if not self._request.is_quiet:
            _write(f"breakeven: fast_step is left out, and the loop runs as it is: {reason}")

    def _note_update(self, optimizer: int) -> None:
        now_s = monotonic()
        self._counter.count(optimizer, now_s)
        if self._line is not None:
            self._line.update(now_s)

    def _end(self) -> None:
        if os.getpid() != self._process:  # a process that the script forked
            return
        if self._line is not None:
            self._line.end()
        if not self._request.is_quiet:
            _write(self._summary())
        self._effects.close()

    def _summary(self) -> str:
        elapsed = format_duration((monotonic() - self._start_s) * NS_PER_S)
        steps, rate = self._counter.num_steps, self._counter.steps_per_s
        effects = self._configured.effects() if self._configured is not None else {}
        # Settings that found nothing to change.
        idle = [
            name
            for name, num_applied in effects.items()
            if not num_applied or (name == "fast_step" and self._is_given_up)
        ]
        done = f"{steps:,} {'step' if steps == 1 else 'steps'}" if steps else "no optimizer step"
        speed = f" at {format_digits(rate)} it/s" if rate else ""
        return (
            f"breakeven: {done}{speed}, {elapsed} in all, on {self._request.device}: "
            f"{settings_text(self._request.configuration)}"
            + (f" (without effect: {', '.join(idle)})" if idle else "")
        )


class _AfterTorch(MetaPathFinder):
    """Calls back after torch is imported.

    Args:
        callback: Receives the module before the script continues.
    """

    def __init__(self, callback: Callable[[ModuleType], None]) -> None:
        self._callback = callback

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of torch; None for other modules."""
        spec = PathFinder.find_spec(fullname) if fullname == "torch" else None
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return None
        execute = loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            del loader.exec_module
            # Remove it only now: libraries first look for torch without importing it.
            sys.meta_path.remove(self)
            execute(module)
            self._callback(module)

        loader.exec_module = execute_and_call
        return spec


def _is_live_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except (AttributeError, ValueError):  # the stream is missing or closed
        return False


def _write(line: str) -> None:
    # The script may have replaced sys.stderr or closed it, or started without it.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.__stderr__.write(line + "\n")  # pyright: ignore[reportOptionalMemberAccess]
        sys.__stderr__.flush()  # pyright: ignore[reportOptionalMemberAccess]


def go_on_as_script(request: EndRequest, target: str, arguments: Sequence[str]) -> None:
    """Run the script in this process, which ends like the script.

    Args:
        request: How to run it.
        target: Path of the script, or name of the module.
        arguments: ``sys.argv[1:]`` of the script.
    """
    run = _RunToEnd(request)
    run.prepare()
    try:
        run_as_main(target, arguments, is_module=request.is_module, code_of=run.code_of)
    except (BreakevenError, FastStepError) as error:
        _write(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))
        sys.exit(error.exit_code if isinstance(error, BreakevenError) else 3)


if __name__ == "__main__":
    go_on_as_script(msgspec.json.decode(sys.argv[1], type=EndRequest), sys.argv[2], sys.argv[3:])

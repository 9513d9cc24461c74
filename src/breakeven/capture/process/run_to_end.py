"""Runs the user's script to its end under a configuration, instead of plain Python.

The command's process becomes the script's, or first replaces itself by ``python -P -m
breakeven.capture.process.run_to_end REQUEST TARGET [ARGUMENT ...]``. Standard streams, process id,
signals and exit status are the script's own, and no process remains after it.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from time import monotonic
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec

from breakeven.capture.process.as_main import run_as_main
from breakeven.capture.process.children import python_command
from breakeven.errors import BreakevenError
from breakeven.trace import Configuration
from breakeven.units import NS_PER_S, format_digits, format_duration
from faststep import FastStepError

if TYPE_CHECKING:
    from breakeven.settings import configured


class EndRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a script to its end.

    Args:
        is_module: Whether the target is a module's name.
        device: Device of the step; for ``cpu``, CUDA is hidden.
        has_cuda: Run CUDA calls on the CPU, and make ``torch.cuda.is_available()`` return True, for
            scripts that refuse to run without a GPU.
        configuration: Settings in effect around the script.
        is_quiet: Write none of breakeven's own output.
        pays_after_s: Start one-time costs, such as compiling, after this time of steps; 0 to start
            at once.
        pays_after_steps: Least number of steps before they start.
    """

    is_module: bool
    device: Literal["cpu", "gpu"]
    has_cuda: bool
    configuration: Configuration
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


class _RunToEnd:
    """One run, from the script's import of torch to its end."""

    def __init__(self, request: EndRequest) -> None:
        self._request = request
        self._start_s = monotonic()
        self._process = os.getpid()
        self._effects = ExitStack()
        self._counter = StepCounter()
        self._configured: configured | None = None
        self._is_given_up = False
        self._end_update: Callable[[int], None] = self._note_update
        # Registered before the script's handlers, so called after them.
        atexit.register(self._end)

    def prepare(self) -> None:
        """Prepare the process before torch is imported."""
        if self._request.device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
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
        self._counter.count(optimizer, monotonic())

    def _end(self) -> None:
        if os.getpid() != self._process:  # a process that the script forked
            return
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


def _write(line: str) -> None:
    # The script may have replaced sys.stderr or closed it, or started without it.
    with suppress(AttributeError, OSError, ValueError):
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

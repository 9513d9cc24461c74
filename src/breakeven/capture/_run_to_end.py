"""Run the user's script to its end under a configuration, in place of plain Python.

Started as ``python -P -m breakeven.capture._run_to_end REQUEST TARGET [ARGUMENT ...]`` by replacing
the process of the command: standard streams, process id, signals and exit status are the script's
own, and nobody is left behind to outlive it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from breakeven.capture._as_main import run_as_main
from breakeven.capture._end_request import EndRequest, settings_text
from breakeven.capture._live_line import LiveLine, StepCounter
from breakeven.capture._script_modules import put_back
from breakeven.errors import BreakevenError
from breakeven.units import NS_PER_S, format_digits, format_duration

if TYPE_CHECKING:
    from breakeven.configure import configured


class _RunToEnd:
    """One run: what is put around the script, from its import of torch to the end."""

    def __init__(self, request: EndRequest) -> None:
        self._request = request
        self._start_s = monotonic()
        self._process = os.getpid()
        self._effects = ExitStack()
        self._counter = StepCounter()
        self._line: LiveLine | None = None
        self._configured: configured | None = None
        # Registered before the script's own, and so called after them.
        atexit.register(self._end)

    def prepare(self) -> None:
        """Do what is to be done before torch is imported."""
        if self._request.device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if not self._request.is_quiet and _is_live_terminal():
            self._line = LiveLine(
                self._counter, self._request.device, self._request.num_steps, sys.stderr
            )
        sys.meta_path.insert(0, _AfterImport("torch", self._configure))

    def _configure(self) -> None:
        """Put the settings into effect, once torch is there."""
        with put_back():
            from torch.optim.optimizer import register_optimizer_step_post_hook

            from breakeven.capture._redirect import redirect_cuda_to_cpu
            from breakeven.configure import configured

        request = self._request
        # As it was measured; torch.compile does not bear the replaced functions, and is ignored.
        if request.has_cuda:
            self._effects.enter_context(redirect_cuda_to_cpu(has_cuda=True))
        self._configured = self._effects.enter_context(
            configured(request.configuration, device="cuda" if request.device == "gpu" else "cpu")
        )
        register_optimizer_step_post_hook(self._note_step)

    def _note_step(self, optimizer: Any, *_: Any) -> None:
        now_s = monotonic()
        self._counter.count(id(optimizer), now_s)
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
        done = f"{steps:,} {'step' if steps == 1 else 'steps'}" if steps else "no optimizer step"
        speed = f" at {format_digits(rate)} it/s" if rate else ""
        return (
            f"breakeven: {done}{speed}, {elapsed} in all, on {self._request.device}: "
            f"{settings_text(self._request.configuration)}{self._idle_settings()}"
        )

    def _idle_settings(self) -> str:
        """Return which settings found nothing to change, if any did."""
        effects = self._configured.effects() if self._configured is not None else {}
        idle = [name for name, num_applied in effects.items() if not num_applied]
        return f" (without effect: {', '.join(idle)})" if idle else ""


class _AfterImport(MetaPathFinder):
    """Calls back when a module has been imported, and is gone then.

    torch must not be imported before: a script may set OMP_NUM_THREADS first, which is read then.

    Args:
        name: Of the module.
        on_import: Called once, before who imports it goes on.
    """

    def __init__(self, name: str, on_import: Callable[[], None]) -> None:
        self._name = name
        self._on_import = on_import
        self._is_looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as everybody else does, and have it call back."""
        if fullname != self._name or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_looking = False
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute = loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            del loader.exec_module
            # Only now, since libraries look for it first without importing it.
            sys.meta_path.remove(self)
            execute(module)
            self._on_import()

        loader.exec_module = execute_and_call
        return spec


def _is_live_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _write(line: str) -> None:
    # The script may have replaced sys.stderr, closed it, or never had it.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.__stderr__.write(line + "\n")  # pyright: ignore[reportOptionalMemberAccess]
        sys.__stderr__.flush()  # pyright: ignore[reportOptionalMemberAccess]


def main() -> None:
    """Run the script; the process ends as the script does."""
    request = msgspec.json.decode(sys.argv[1], type=EndRequest)
    _RunToEnd(request).prepare()
    try:
        run_as_main(sys.argv[2], sys.argv[3:], is_module=request.is_module)
    except BreakevenError as error:
        _write(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

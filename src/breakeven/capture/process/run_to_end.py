"""Run the user's script to its end under a configuration, in place of plain Python.

Started as ``python -P -m breakeven.capture.process.run_to_end REQUEST TARGET [ARGUMENT ...]`` by
replacing the process of the command: standard streams, process id, signals and exit status are the
script's own, and nobody is left behind to outlive it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from breakeven.capture.process.after_import import call_after_import
from breakeven.capture.process.as_main import put_back, run_as_main
from breakeven.capture.process.live_line import LiveLine, StepCounter
from breakeven.capture.process.script_process import settings_text
from breakeven.capture.requests import EndRequest
from breakeven.errors import BreakevenError
from breakeven.units import NS_PER_S, format_digits, format_duration

if TYPE_CHECKING:
    from breakeven.settings import configured


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
        self._end_update: Callable[[int], None] = self._note_update
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
        # Not imported before: a script may set OMP_NUM_THREADS first, which is read then.
        call_after_import({"torch": self._configure})

    def _configure(self, _: ModuleType) -> None:
        """Put the settings into effect, once torch is there."""
        with put_back():
            from torch.optim.optimizer import register_optimizer_step_post_hook

            from breakeven.capture.pretend.cuda_api import hide_other_gpus
            from breakeven.capture.pretend.cuda_graphs import CudaGraphs
            from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
            from breakeven.capture.sessions.gpu_here import gpu_here
            from breakeven.configure import Patches
            from breakeven.settings import configured

        request = self._request
        # As it was measured; torch.compile does not bear the replaced functions, and is ignored.
        if request.has_cuda:
            graphs = CudaGraphs(self._note_update)
            self._effects.enter_context(redirect_cuda_to_cpu(has_cuda=True, graphs=graphs))
            self._end_update = graphs.end_update
        if request.device == "cpu" and gpu_here():
            hide_other_gpus(self._effects.enter_context(Patches()))
        self._configured = self._effects.enter_context(
            configured(request.configuration, device="cuda" if request.device == "gpu" else "cpu")
        )
        register_optimizer_step_post_hook(self._note_step)

    def _note_step(self, optimizer: Any, *_: Any) -> None:
        self._end_update(id(optimizer))

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

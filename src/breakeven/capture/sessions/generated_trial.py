"""Time of a step as generated code: a plain run records and compiles one more step.

The steps before it time the rest of the loop, such as data and logging.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import _push_mode

from breakeven.capture.location import locate
from breakeven.capture.record.hooks import OptimizerHooks
from breakeven.capture.record.modes import take_off, without_modes
from breakeven.capture.sessions.session import BackwardCall, BackwardCalls
from breakeven.configure import Patches, has_parameters
from breakeven.measure import measure_step
from breakeven.timing import Clock, Estimate, Measurement, Source, find_round_ends
from breakeven.units import NS_PER_S
from breakeven.verdict import GeneratedRun
from faststep import FastStepError

if TYPE_CHECKING:
    from faststep.recorded import StepRecorder

# In longer steps, call overhead hardly matters.
LONGEST_STEP_NS = 50_000_000
# Time the rest of the loop for at least this number of steps, and for this time.
_LEAST_STEPS = 5
_KEPT_NS = 0.15 * NS_PER_S
# Time to measure the code. Reading a clock takes as long as a short call, so a sample spans several
# calls.
_CODE_BUDGET_S = 0.2
_SAMPLE_NS = 200_000
_MOST_CALLS = 200
# After this number of rounds, the round of several optimizers is known.
_FIRST_ROUNDS = 2


class GeneratedTrial(Patches):
    """Continues a loop for some steps, and records, generates and times the last one.

    Args:
        clock: Clock of the steps.
        optimizers: Optimizers of the loop.
    """

    def __init__(self, clock: Clock, optimizers: OptimizerHooks) -> None:
        super().__init__()
        self._clock = clock
        self._optimizers = optimizers
        self.is_running = False
        self._result: GeneratedRun | None = None
        self._calls: list[int] = []
        self._begun_ns = 0
        # Start of the current interval outside the work to be generated; None within that work.
        self._kept_since_ns: int | None = None
        self._kept_ns = 0
        self._kept_samples_ns: list[int] = []
        self._recorder: StepRecorder | None = None
        # The first recorded step may hold an evaluation, which the loop runs between two others.
        self._tries_left = 2

    def begin(self) -> None:
        """Start at the end of an update, while the loop continues."""
        self.is_running = True
        self._begun_ns = self._kept_since_ns = self._clock.now_ns()

    def _apply(self) -> None:
        def begin_forward(module: nn.Module, _: Any) -> None:
            now_ns = self._clock.now_ns() if self._kept_since_ns is not None else 0
            if now_ns and has_parameters(module):  # a loss or data preparation has none
                self._end_kept(now_ns)

        def note_reads(name: str) -> None:
            original: Callable[..., Any] = getattr(torch.Tensor, name)

            def read(*args: Any, **kwargs: Any) -> Any:
                if self._recorder is not None:
                    self._recorder.note_read(name)
                return original(*args, **kwargs)

            self.replace(torch.Tensor, name, read)

        self.callback(register_module_forward_pre_hook(begin_forward).remove)
        self.enter_context(BackwardCalls(self._end_backward))
        for owner in (torch.optim.Optimizer, nn.Module):
            self._leave_out(owner, "zero_grad")
        for optimizer in self._optimizers.seen():
            # torch's own work between the end of an update and the return of `step`.
            self._leave_out(optimizer, "step")
        note_reads("numpy")
        note_reads("tolist")

    def fetching(self) -> AbstractContextManager[object]:
        """Return a context for a fetch of a batch, which stays in the loop and is not recorded."""
        return self._fetch() if self.is_running else nullcontext()

    def mark(self, optimizer: int) -> bool:
        """Note an update; return whether the trial is complete."""
        now_ns = self._clock.now_ns()
        self._end_kept(now_ns)  # if no model was called
        self._calls.append(optimizer)
        ends = find_round_ends(self._calls)
        if ends[-1:] == (len(self._calls) - 1,):
            self._end_step(len(ends), now_ns)
        self._kept_since_ns = self._clock.now_ns()
        return not self.is_running

    def result(self) -> GeneratedRun | None:
        """Return the result; None before the trial has begun."""
        if not self._begun_ns:
            return None
        return self._result or GeneratedRun(because="the run ended before a step was recorded")

    def _end_step(self, num_steps: int, now_ns: int) -> None:
        if self._recorder is not None:
            if not take_off(self._recorder):
                self._recorder.refuse("several threads train")
            with without_modes():
                self._result = self._finish(self._recorder)
            self._tries_left -= 1
            self.is_running = self._result.code is None and self._tries_left > 0
            if self.is_running:
                self._start_recording()
            return
        if num_steps > _FIRST_ROUNDS:
            self._kept_samples_ns.append(self._kept_ns)
        self._kept_ns = 0
        is_long = now_ns - self._begun_ns >= _KEPT_NS
        if is_long and len(self._kept_samples_ns) >= _LEAST_STEPS:
            self._start_recording()

    def _start_recording(self) -> None:
        # Import late: these imports are slow, and few runs need them.
        from faststep.codegen.tracing import without_onednn
        from faststep.recorded import StepRecorder

        self._recorder = StepRecorder(_user_line)
        self.callback(take_off, self._recorder)
        # Record compositions of operators instead of fused kernels.
        self.enter_context(without_onednn())
        self.enter_context(sdpa_kernel(SDPBackend.MATH))
        _push_mode(self._recorder)

    def _finish(self, recorder: StepRecorder) -> GeneratedRun:
        from faststep.guards import unwatched_steps
        from faststep.recorded import generate_recorded

        kept = Measurement(samples_ns=tuple(self._kept_samples_ns), num_warmup=0)
        try:
            with warnings.catch_warnings(), unwatched_steps(), torch.enable_grad():
                warnings.simplefilter("ignore")
                found = generate_recorded(recorder, self._optimizers.state_names())
                code = _estimate(found.run)
        except FastStepError as error:
            return GeneratedRun(because=error.message)
        return GeneratedRun(code=code, kept=kept.estimate, compile_ns=found.compile_ns)

    def _end_backward(self, call: BackwardCall) -> None:
        # If no model with parameters was called, the work before the backward pass stays in the
        # loop.
        self._end_kept(self._clock.now_ns() - call.duration_ns)
        if self._recorder is not None:
            self._recorder.note_backward(call.outputs)

    def _end_kept(self, now_ns: int | None = None) -> None:
        """End an interval outside the work to be generated, if one is running."""
        if self._kept_since_ns is not None:
            end_ns = self._clock.now_ns() if now_ns is None else now_ns
            self._kept_ns += max(0, end_ns - self._kept_since_ns)
            self._kept_since_ns = None

    @contextmanager
    def _fetch(self) -> Iterator[None]:
        was_kept = self._kept_since_ns is not None
        if not was_kept:  # between two batches of a step
            self._kept_since_ns = self._clock.now_ns()
        try:
            with without_modes() if self._recorder is not None else nullcontext():
                yield
        finally:
            if not was_kept:
                self._end_kept()

    def _leave_out(self, owner: Any, name: str) -> None:
        """Count a method's time as part of the work to be generated."""
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            was_kept = self._kept_since_ns is not None
            self._end_kept()
            try:
                return original(*args, **kwargs)
            finally:
                if was_kept or self._kept_since_ns is not None:  # an update ended inside
                    self._kept_since_ns = self._clock.now_ns()

        self.replace(owner, name, timed)


def _estimate(call: Callable[[], None]) -> Estimate:
    """Return the time of a call."""
    begun_ns = time.perf_counter_ns()
    for _ in range(3):
        call()
    once_ns = (time.perf_counter_ns() - begun_ns) / 3
    num_calls = int(min(max(1, _SAMPLE_NS // max(once_ns, 1)), _MOST_CALLS))

    def calls() -> None:
        for _ in range(num_calls):
            call()

    found = measure_step(calls, budget_s=_CODE_BUDGET_S).estimate
    return Estimate(
        value_ns=found.value_ns / num_calls,
        low_ns=found.low_ns / num_calls,
        high_ns=found.high_ns / num_calls,
        source=Source.MEASURED,
    )


def _user_line() -> str:
    location = locate(sys._getframe(1))
    return "" if location is None else location.text

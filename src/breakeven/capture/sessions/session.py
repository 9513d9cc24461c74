"""What all kinds of runs of a script share, and the least of them: one that counts its steps.

Each sees every backward pass that the script asks for, and can time the parts of a step by them.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
from torch._C._functorch import get_interpreter_stack
from torch.optim.optimizer import register_optimizer_step_post_hook

from breakeven.capture.messages import Answer, ProbeRun, RunRequest
from breakeven.capture.pretend.cuda_graphs import CudaGraphs
from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
from breakeven.capture.record.hooks import OptimizerHooks
from breakeven.capture.record.loader_watch import LoaderWatch
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches
from breakeven.measure import own_time_ns
from breakeven.timing import StepPhases


class ScriptSession(Patches):
    """Is around a script while it runs, and tells its steps apart.

    Args:
        request: How the script is run.
        on_done: Called from the training loop when enough is known.
        on_step: Progress callback: gets the number of steps, and whether a quiet moment is waited
            for.
    """

    def __init__(
        self, request: RunRequest, on_done: Callable[[], None],
        on_step: Callable[[int, bool], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._request = request
        self._on_done = on_done
        self._on_step = on_step

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """Return the updates so far."""

    @abstractmethod
    def result(self) -> Answer | None:
        """Return what is known so far, or None when that is no answer."""

    def mark_call(self) -> None:
        """End a step that makes no optimizer call."""
        self._mark(-1)

    @abstractmethod
    def _mark(self, optimizer: int) -> None:
        """End an update, by the number of its optimizer."""


class UpdateSession(ScriptSession):
    """Sees what optimizers update, and what loaders and CUDA graphs do.

    Args:
        request: How the script is run, and which loaders get another batch size.
        on_done: As above.
        on_step: As above.
        recorder: Takes note of what a step does; None if nothing is recorded.
        of_loaders: More for the `LoaderWatch`.
    """

    def __init__(
        self, request: RunRequest, on_done: Callable[[], None],
        on_step: Callable[[int, bool], None] = lambda *_: None,
        recorder: StepRecorder | None = None, **of_loaders: Any,
    ) -> None:  # fmt: skip
        super().__init__(request, on_done, on_step)
        self._graphs = CudaGraphs(self._mark)
        self._optimizers = OptimizerHooks(self._graphs.end_update, recorder)
        self._loaders = LoaderWatch(
            old_batch_size=request.loader_batch_size,
            new_batch_size=request.new_batch_size,
            **of_loaders,
        )

    def _run_cuda_by_cpu(self, on_compile: Callable[[], None] = lambda: None) -> None:
        """Let CUDA devices mean the CPU.

        Args:
            on_compile: Called when the script asks for ``torch.compile``, which is ignored.
        """
        self.enter_context(
            redirect_cuda_to_cpu(
                has_cuda=self._request.has_cuda,
                on_compile=on_compile,
                keeps_compile=self._request.compiles,
                is_alone=True,
                graphs=self._graphs,
            )
        )


# Backward passes whose gradients a script may add up before its first update.
_MOST_ACCUMULATED = 32


class ProbeSession(ScriptSession):
    """Counts the steps of a script, and replaces nothing but what the request asks for.

    If no optimizer of torch is stepped for long, each backward pass counts.

    Args:
        request: How many steps are enough, and whether CUDA is the CPU.
        on_done: Called from the training loop after the last of them.
        on_step: As in every session.
    """

    _num_updates = 0
    _num_backwards = 0

    @property
    def num_steps(self) -> int:
        """Return the steps so far."""
        return self._num_updates or max(0, self._num_backwards - _MOST_ACCUMULATED)

    def _apply(self) -> None:
        if self._request.has_cuda:
            self.enter_context(redirect_cuda_to_cpu(has_cuda=True, is_alone=True))
        self.callback(register_optimizer_step_post_hook(lambda *_: self.mark_call()).remove)
        self.enter_context(BackwardCalls(self._end_backward))

    def _mark(self, optimizer: int) -> None:
        self._num_updates += 1
        self._tell()

    def _end_backward(self, _: BackwardCall) -> None:
        self._num_backwards += 1
        if not self._num_updates:
            self._tell()

    def _tell(self) -> None:
        self._on_step(self.num_steps, False)
        if self.num_steps >= self._request.num_probe_steps:
            self._on_done()

    def result(self) -> ProbeRun | None:
        """Return that all steps were taken; None if some are missing."""
        is_enough = self.num_steps >= self._request.num_probe_steps
        return ProbeRun(num_steps=self.num_steps) if is_enough else None


class _Here(threading.local):
    depth = 0


class BackwardCall(NamedTuple):
    """A backward pass that has ended.

    Args:
        outputs: The tensors that it began at.
        inputs: Whose gradients were asked for; empty for all that is trained.
        is_differentiated: Whether the gradients are to be differentiated again.
        duration_ns: How long it took.
    """

    outputs: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    is_differentiated: bool
    duration_ns: int


class BackwardCalls(Patches):
    """Calls back after each ``backward()``, ``torch.autograd.grad`` or ``torch.func.grad``.

    Those within another one, as of a checkpoint, are part of it.

    Args:
        on_end: Called with each that has ended.
    """

    def __init__(self, on_end: Callable[[BackwardCall], None]) -> None:
        super().__init__()
        self._on_end = on_end
        self._here = _Here()

    def _apply(self) -> None:
        original = torch.autograd._engine_run_backward  # pyright: ignore[reportPrivateImportUsage]
        here = self._here

        def run(
            outputs: Any, gradients: Any, retain_graph: Any, create_graph: Any, inputs: Any,
            *args: Any, **kwargs: Any,
        ) -> Any:  # fmt: skip
            here.depth += 1
            begun_ns = own_time_ns()
            try:
                result = original(
                    outputs, gradients, retain_graph, create_graph, inputs, *args, **kwargs
                )
            finally:
                here.depth -= 1
            if not here.depth:
                duration_ns = own_time_ns() - begun_ns
                # An outermost transform of `torch.func` always makes a graph, in case it is nested.
                levels = get_interpreter_stack()
                is_outermost = levels is not None and len(levels) == 1
                is_differentiated = bool(create_graph) and not is_outermost
                self._on_end(BackwardCall(outputs, inputs or (), is_differentiated, duration_ns))
            return result

        self.replace(torch.autograd, "_engine_run_backward", run)


class PhaseWatch(BackwardCalls):
    """Takes the time of backward passes, and from the last of them to the end of the update.

    Args:
        on_first: Called with the first of them, once.
    """

    def __init__(self, on_first: Callable[[BackwardCall], None] = lambda _: None) -> None:
        super().__init__(self._end_backward)
        self._on_first = on_first
        self._has_seen = False
        # Of each update: time of backward passes since the one before, and since the last of them.
        self._updates: list[tuple[int, int]] = []
        self._backward_ns = 0
        # Since when the update lasts: the end of the last backward pass, or of another update.
        self._last_end_ns = 0

    def mark(self) -> None:
        """Note the end of an update."""
        now_ns = own_time_ns()
        # Not by a hook, within the pass.
        is_after = self._last_end_ns > 0 and not self._here.depth
        self._updates.append((self._backward_ns, now_ns - self._last_end_ns if is_after else 0))
        self._backward_ns = 0
        self._last_end_ns = now_ns

    def phases(self, ends: Sequence[int]) -> StepPhases | None:
        """Return what is typical of steps; None if there are none.

        Args:
            ends: Numbers of the updates, from 0, that end the steps; the first is that before them.
        """
        steps = [self._updates[before + 1 : end + 1] for before, end in pairwise(ends)]
        if not steps:
            return None
        return StepPhases(
            backward_ns=median(sum(backward_ns for backward_ns, _ in step) for step in steps),
            optimizer_ns=median(sum(optimizer_ns for _, optimizer_ns in step) for step in steps),
        )

    def _end_backward(self, call: BackwardCall) -> None:
        self._last_end_ns = own_time_ns()
        self._backward_ns += call.duration_ns
        if not self._has_seen:
            self._has_seen = True
            self._on_first(call)

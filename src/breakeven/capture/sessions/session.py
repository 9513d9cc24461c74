"""Base classes of all sessions, and the simplest session, which only counts steps.

Sessions can observe every backward pass of the script, and time the phases of a step by them.
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

from breakeven.capture.messages import Answer, RunRequest
from breakeven.capture.pretend.cuda_graphs import CudaGraphs
from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
from breakeven.capture.record.hooks import OptimizerHooks
from breakeven.capture.record.loader_watch import LoaderWatch
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches
from breakeven.measure import own_time_ns
from breakeven.timing import StepPhases


class ScriptSession(Patches):
    """Surrounds a running script, and separates its steps.

    Args:
        request: The run.
        on_done: Called from the training loop when the session has its result.
        on_step: Progress callback; receives the number of steps, and whether the run waits for a
            quiet moment.
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
        """Return the number of updates so far."""

    @abstractmethod
    def result(self) -> Answer | None:
        """Return the answer so far, or None if there is none yet."""

    def mark_call(self) -> None:
        """End a step without an optimizer call."""
        self._mark(-1)

    @abstractmethod
    def _mark(self, optimizer: int) -> None:
        """Note the end of an update, by the number of its optimizer."""


class UpdateSession(ScriptSession):
    """Observes updates of optimizers, loaders and CUDA graphs.

    Args:
        request: The run, with the loaders to change.
        on_done: As above.
        on_step: As above.
        recorder: Records the step; None without a recording.
        of_loaders: More arguments for the `LoaderWatch`.
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
        """Make CUDA devices mean the CPU.

        Args:
            on_compile: Called when the script calls ``torch.compile``, which is ignored.
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


class ProbeSession(ScriptSession):
    """Counts the updates of a script up to its end, and replaces nothing else.

    With ``has_cuda``, CUDA means the CPU.
    """

    _num_updates = 0

    @property
    def num_steps(self) -> int:
        """Return the number of updates so far."""
        return self._num_updates

    def _apply(self) -> None:
        if self._request.has_cuda:
            self.enter_context(redirect_cuda_to_cpu(has_cuda=True, is_alone=True))
        self.callback(register_optimizer_step_post_hook(lambda *_: self.mark_call()).remove)

    def _mark(self, optimizer: int) -> None:
        self._num_updates += 1
        self._on_step(self._num_updates, False)

    def result(self) -> None:
        """Return nothing: the failure of the run, for whatever reason, has the number of steps."""


class _Here(threading.local):
    depth = 0


class BackwardCall(NamedTuple):
    """A completed backward pass.

    Args:
        outputs: Tensors at which it began.
        inputs: Tensors of the requested gradients; empty for all trained tensors.
        is_differentiated: Whether the gradients will be differentiated again.
        duration_ns: Its duration.
    """

    outputs: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    is_differentiated: bool
    duration_ns: int


class BackwardCalls(Patches):
    """Calls back after each ``backward()``, ``torch.autograd.grad`` or ``torch.func.grad``.

    Nested calls, such as those of a checkpoint, belong to the outer one.

    Args:
        on_end: Called with each completed backward pass.
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
                # An outermost transform of `torch.func` always creates a graph: it may be nested.
                levels = get_interpreter_stack()
                is_outermost = levels is not None and len(levels) == 1
                is_differentiated = bool(create_graph) and not is_outermost
                self._on_end(BackwardCall(outputs, inputs or (), is_differentiated, duration_ns))
            return result

        self.replace(torch.autograd, "_engine_run_backward", run)


class PhaseWatch(BackwardCalls):
    """Times backward passes, and the interval from the last one to the end of the update."""

    def __init__(self) -> None:
        super().__init__(self._end_backward)
        # For each update: time of its backward passes, and time since the last of them.
        self._updates: list[tuple[int, int]] = []
        self._backward_ns = 0
        # Start of the update: the end of the last backward pass, or of another update.
        self._last_end_ns = 0

    def mark(self) -> None:
        """Note the end of an update."""
        now_ns = own_time_ns()
        # Exclude an update by a hook within the pass.
        is_after = self._last_end_ns > 0 and not self._here.depth
        self._updates.append((self._backward_ns, now_ns - self._last_end_ns if is_after else 0))
        self._backward_ns = 0
        self._last_end_ns = now_ns

    def phases(self, ends: Sequence[int]) -> StepPhases | None:
        """Return the typical phases of a step; None without a step.

        Args:
            ends: Numbers, from 0, of the updates that end steps; the first precedes all steps.
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

"""What all kinds of runs of a script share, and the least of them: one that counts its steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from breakeven.capture.answers import Answer, ProbeRun
from breakeven.capture.load.loader_watch import LoaderWatch
from breakeven.capture.pretend.cuda_graphs import CudaGraphs
from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
from breakeven.capture.record.hooks import OptimizerHooks
from breakeven.capture.record.recorder import StepRecorder
from breakeven.capture.requests import RunRequest
from breakeven.capture.sessions.backward_calls import BackwardCall, BackwardCalls


class Session(ExitStack):
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


class UpdateSession(Session):
    """Sees what optimizers update, and what loaders and CUDA graphs do.

    Args:
        request: How the script is run, and which loaders get another batch size.
        on_done: As above.
        on_step: As above.
        recorder: Takes note of what a step does; None where nothing is recorded.
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

    def _run_cuda_by_cpu(self, on_compile: Callable[[], None] | None = None) -> None:
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


class ProbeSession(Session):
    """Counts the steps of a script, and replaces nothing but what the request asks for.

    Where no optimizer of torch is stepped for long, each backward pass counts.

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

    def __enter__(self) -> ProbeSession:
        super().__enter__()
        if self._request.has_cuda:
            self.enter_context(redirect_cuda_to_cpu(has_cuda=True, is_alone=True))
        self.callback(register_optimizer_step_post_hook(lambda *_: self.mark_call()).remove)
        self.enter_context(BackwardCalls(self._end_backward))
        return self

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
        """Return that all steps were taken; None where some are missing."""
        is_enough = self.num_steps >= self._request.num_probe_steps
        return ProbeRun(num_steps=self.num_steps) if is_enough else None

"""Run a script as it is, to see whether it fails by itself."""

from __future__ import annotations

from torch.optim.optimizer import register_optimizer_step_post_hook

from breakeven.capture.answers import ProbeRun
from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
from breakeven.capture.sessions.backward_calls import BackwardCall, BackwardCalls
from breakeven.capture.sessions.session import Session

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

"""See every backward pass that a script asks for, and time the parts of a step by them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
from torch._C._functorch import get_interpreter_stack

from breakeven.configure import Patches
from breakeven.measure import own_time_ns
from breakeven.timing import StepPhases


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

    def __enter__(self) -> BackwardCalls:
        super().__enter__()
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
                is_differentiated = bool(create_graph) and not _is_outermost_transform()
                self._on_end(BackwardCall(outputs, inputs or (), is_differentiated, duration_ns))
            return result

        self.replace(torch.autograd, "_engine_run_backward", run)
        return self

    @property
    def is_within(self) -> bool:
        """Return whether a backward pass runs in this thread."""
        return self._here.depth > 0


def _is_outermost_transform() -> bool:
    """Return whether ``torch.func`` asks: it always makes a graph, in case it is nested."""
    levels = get_interpreter_stack()
    return levels is not None and len(levels) == 1


class _Update(NamedTuple):
    """What there was from one update to the next: backward passes, and the time since the last."""

    backward_ns: int
    optimizer_ns: int


class PhaseWatch(BackwardCalls):
    """Takes the time of backward passes, and from the last of them to the end of the update."""

    def __init__(self) -> None:
        super().__init__(self._end_backward)
        self._updates: list[_Update] = []
        self._backward_ns = 0
        # Since when the update lasts: the end of the last backward pass, or of another update.
        self._last_end_ns = 0

    def mark(self) -> None:
        """Note the end of an update."""
        now_ns = own_time_ns()
        is_after = (
            self._last_end_ns > 0 and not self.is_within
        )  # and not by a hook, within the pass
        since_ns = now_ns - self._last_end_ns if is_after else 0
        self._updates.append(_Update(self._backward_ns, since_ns))
        self._backward_ns = 0
        self._last_end_ns = now_ns

    def phases(self, ends: Sequence[int]) -> StepPhases | None:
        """Return what is typical of steps; None where there are none.

        Args:
            ends: Numbers of the updates, from 0, that end the steps; the first is that before them.
        """
        steps = [self._updates[before + 1 : end + 1] for before, end in pairwise(ends)]
        if not steps:
            return None
        return StepPhases(
            backward_ns=median(sum(update.backward_ns for update in step) for step in steps),
            optimizer_ns=median(sum(update.optimizer_ns for update in step) for step in steps),
        )

    def _end_backward(self, call: BackwardCall) -> None:
        self._last_end_ns = own_time_ns()
        self._backward_ns += call.duration_ns

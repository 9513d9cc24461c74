"""See every backward pass that a script asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._functorch import get_interpreter_stack

from breakeven.configure import Patches
from breakeven.measure import own_time_ns


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
        on_end: Told of each that has ended.
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

"""Finds the steps of a training loop without a torch optimizer.

Such a step lies between two updates of parameters: writes to leaves that require gradients, after a
backward pass. If a loop creates new parameters instead (``torch.func``), a step lies between two
backward passes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import cache
from typing import Any

import torch

from breakeven.capture.record.event_log import EventLog
from breakeven.capture.record.operators import tensors_in
from breakeven.measure import own_time_ns
from breakeven.trace import Phase


class Boundary(IntEnum):
    """The kind of event that ends a step; if a run has several kinds, the highest counts."""

    # A backward pass without an update after it.
    GRADIENT = 0
    # A backward pass after the loop created new parameters.
    BACKWARD = 1
    # Writes to parameters after a backward pass.
    UPDATE = 2
    # A call of a torch optimizer, or of the function that is a step.
    OPTIMIZER = 3


class UpdateWatch:
    """Detects updates that no torch optimizer makes.

    Args:
        recorder: Recorder of the operators.
        on_boundary: Called at the end of a step with its kind and the number of the updated
            parameters: models that take turns have different numbers.
    """

    def __init__(self, recorder: EventLog, on_boundary: Callable[[Boundary, int], None]) -> None:
        self._recorder = recorder
        self._on_boundary = on_boundary
        # Parameters by id, each with its number and the number of its memory.
        self._leaves: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}
        self._leaf_of_storage: dict[int, int] = {}
        self._num_leaves = 0
        # Parameters written since the last backward pass, and the end of these events in their log.
        self._written: set[int] = set()
        self._last_write = (recorder.step, 0)
        # Parameters in forward passes since the last backward pass, and in those before it.
        self._used: set[int] = set()
        self._used_before: set[int] | None = None
        # Before the end of the first backward pass, the step was not observed.
        self._has_seen_all = False
        # Elements whose gradients the last backward pass explicitly requested.
        self._num_asked = 0
        self._lock = threading.RLock()

    @property
    def num_parameters(self) -> int:
        """Return the number of elements of all parameters seen."""
        return sum(leaf.numel() for leaf in self.leaves()) or self._num_asked

    def leaves(self) -> Iterator[torch.Tensor]:
        """Yield the live parameters, each once."""
        for reference, _, _ in list(self._leaves.values()):
            leaf = reference()
            if leaf is not None:
                yield leaf

    def see(
        self, func: Any, inputs: Sequence[torch.Tensor], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> set[int]:
        """Inspect an operator before it runs; return the parameters to which it writes."""
        if (
            self._recorder.here.phase is Phase.OPTIMIZER
            or torch._C._current_autograd_node() is not None
        ):
            return set()
        if torch.is_grad_enabled():
            leaves = [tensor for tensor in inputs if tensor.requires_grad and tensor.is_leaf]
            for leaf in leaves:
                self._note_use(leaf)
            if self._written and (leaves or any(tensor.requires_grad for tensor in inputs)):
                self.begin_forward()
                return set()
        if not self._leaf_of_storage:
            return set()
        storages = map(self._recorder.devices.number_of, _written_by(func, args, kwargs))
        return {self._leaf_of_storage[one] for one in storages if one in self._leaf_of_storage}

    def end_write(self, written: set[int]) -> None:
        """Note the end of a write to parameters, with the copies and work before it."""
        self._written |= written
        self._last_write = (self._recorder.step, len(self._recorder.events))

    def begin_forward(self) -> None:
        """End the step if parameters were written: the next forward pass begins."""
        with self._lock:
            written, self._written = self._written, set()
        if written and torch.is_grad_enabled():
            log, end = self._last_write
            if log is self._recorder.step:  # else a recording began after that write
                self._recorder.mark_as_update(end)
            self._recorder.note_gap(own_time_ns())  # work since then belongs to the ended step
            self._on_boundary(Boundary.UPDATE, min(written))

    def end_backward(self, inputs: Sequence[torch.Tensor]) -> None:
        """Note the end of a backward pass, and of a step if the loop writes to no parameter.

        Args:
            inputs: Tensors of the requested gradients; empty for all trained tensors.
        """
        # An input may be an edge of the graph instead of a tensor.
        self._num_asked = sum(one.numel() for one in inputs if isinstance(one, torch.Tensor))
        used, before = self._used, self._used_before
        self._used, self._used_before = set(), used if self._has_seen_all else None
        if self._has_seen_all:
            # A loop through `torch.func` has no parameters visible here.
            is_updated = not used or before not in (None, used)
            self._on_boundary(Boundary.BACKWARD if is_updated else Boundary.GRADIENT, 0)
        self._has_seen_all = True

    def _note_use(self, leaf: torch.Tensor) -> None:
        storage = self._recorder.devices.number_of(leaf)
        known = self._leaves.get(id(leaf))
        if known is None or known[0]() is not leaf:
            self._num_leaves += 1
            number = self._num_leaves
        else:
            number = known[1]
            if known[2] != storage:  # `p.data = ...` changes its memory
                self._leaf_of_storage.pop(known[2], None)
                self._written.add(number)
                self._last_write = (self._recorder.step, len(self._recorder.events))
        self._leaves[id(leaf)] = (weakref.ref(leaf), number, storage)
        self._leaf_of_storage[storage] = number
        self._used.add(number)


@cache
def _written_positions(func: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the arguments to which an operator writes: positions, and names of keywords."""
    arguments = func._schema.arguments
    written = [
        (position, argument)
        for position, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return (
        tuple(position for position, argument in written if not argument.kwarg_only),
        tuple(argument.name for _, argument in written),
    )


def _written_by(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    positions, names = _written_positions(func)
    yield from tensors_in(args[position] for position in positions if position < len(args))
    yield from tensors_in(kwargs[name] for name in names if name in kwargs)

"""The work of a captured CUDA graph, for replays on the CPU.

On CUDA a capture computes nothing, and each replay computes on the same memory. Here the captured
operators run, and the end of the capture undoes their writes outside the graph. A replay runs them
again: on the same external memory, and on new intermediate memory, which is freed as in the eager
step. Memory from the capture that is still in use receives the new values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from breakeven.capture.record.device_map import DeviceMap
from breakeven.capture.record.modes import without_modes
from breakeven.capture.record.operators import tensors_in
from breakeven.errors import BreakevenError


class _Inner(NamedTuple):
    """A tensor in memory that the graph itself creates: its place in that memory."""

    memory: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class _Call(NamedTuple):
    """An operator: its arguments, and for each result the memory that it creates, or -1.

    Some operators give more results if gradients are recorded.
    """

    compute: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: tuple[int, ...]
    has_grad: bool


class GraphWork:
    """The operators of one graph, and their memory."""

    def __init__(self) -> None:
        self._numbers = DeviceMap()
        self._calls: list[_Call] = []
        # Number of calls before each update, and number of its optimizer.
        self._updates: list[tuple[int, int]] = []
        # Memory that the graph creates, by number; and the former contents of other memory.
        self._made: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._random_state = torch.get_rng_state()
        # Numbers of memory without further use, by position of the call.
        self._released: dict[int, list[int]] = {}

    def run_operator(
        self, run: Callable[..., Any], func: Any, base_name: str, args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        """Run an operator by ``run(func, base_name, args, kwargs)``, and keep it."""

        def compute(*args: Any, **kwargs: Any) -> Any:
            return run(func, base_name, args, kwargs)

        return self.run(compute, args, kwargs, writes=func._schema.is_mutable)

    def run(
        self, compute: Callable[..., Any], args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None, *, writes: bool = True,
    ) -> Any:  # fmt: skip
        """Run ``compute(*args, **kwargs)``, and keep it for replays if it computes anything.

        Args:
            compute: A function from tensors to tensors, in lists or not.
            args: Its arguments.
            kwargs: Its named arguments.
            writes: Whether it declares writes to its arguments.
        """
        kwargs = kwargs or {}
        with _below_torch():
            kept_args = tree_map_only(torch.Tensor, self._seen, args)
            kept_kwargs = tree_map_only(torch.Tensor, self._seen, kwargs)
        has_grad = torch.is_grad_enabled()
        result = compute(*args, **kwargs)
        made = tuple(self._memory_made(tensor) for tensor in tensors_in((result,)))
        # A view of existing memory needs no replay.
        if max(made, default=-1) >= 0 or writes:
            self._calls.append(_Call(compute, kept_args, kept_kwargs, made, has_grad))
        return result

    def note_update(self, optimizer: int) -> None:
        """Note an update by an optimizer."""
        self._updates.append((len(self._calls), optimizer))

    def end(self) -> None:
        """End the capture, and undo its writes outside the graph."""
        for storage, before in self._before.values():
            storage.copy_(before)
        self._before.clear()
        torch.set_rng_state(self._random_state)
        self._made = {number: ref for number, ref in self._made.items() if ref() is not None}
        last = {
            tensor.memory: position
            for position, call in enumerate(self._calls)
            for tensor in _inner_of(call)
        }
        for position, call in enumerate(self._calls):
            for number in call.made:
                if number >= 0 and number not in self._made:
                    self._released.setdefault(last.get(number, position), []).append(number)

    def replay(self, on_update: Callable[[int], None]) -> None:
        """Run the operators again.

        Args:
            on_update: Called with the optimizer's number after each update.
        """
        memory: dict[int, torch.Tensor] = {}

        def found(value: _Inner) -> torch.Tensor:
            base = memory[value.memory]
            _, size, stride, offset, dtype = value
            if dtype is not base.dtype:
                empty = torch.empty(0, dtype=dtype)
                return empty.set_(base.untyped_storage(), offset, size, stride)
            if size == base.shape and stride == base.stride() and offset == base.storage_offset():
                return base
            return base.as_strided(size, stride, offset)

        start = 0
        for end, optimizer in (*self._updates, (len(self._calls), None)):
            if end > start:
                with _below_torch():
                    for position in range(start, end):
                        self._run_again(position, memory, found)
                    self._write_made(memory)
            if optimizer is not None:
                on_update(optimizer)
            start = end

    def _run_again(
        self, position: int, memory: dict[int, torch.Tensor],
        found: Callable[[_Inner], torch.Tensor],
    ) -> None:  # fmt: skip
        call = self._calls[position]
        args = _with_tensors(call.args, found)
        kwargs = {name: _with_tensors(value, found) for name, value in call.kwargs.items()}
        with torch.set_grad_enabled(call.has_grad):  # no argument requires a gradient
            result = call.compute(*args, **kwargs)
        for number, tensor in zip(call.made, tensors_in((result,)), strict=True):
            if number >= 0:
                memory[number] = tensor
        for number in self._released.get(position, ()):
            del memory[number]

    def _write_made(self, memory: dict[int, torch.Tensor]) -> None:
        """Write the new values to the graph's memory that is still in use outside it."""
        for number, reference in self._made.items():
            storage = reference()
            if storage is not None and number in memory:
                storage.copy_(memory[number].untyped_storage())

    def _seen(self, tensor: torch.Tensor) -> torch.Tensor | _Inner:
        """Return an argument in the form that a replay needs."""
        number = self._numbers.number_of(tensor)
        if number < 0 or tensor.layout is not torch.strided:
            raise BreakevenError(
                "a captured CUDA graph works on a tensor that has no memory of its own kind "
                f"({tensor.layout}): leave operators on sparse tensors out of the graph"
            )
        if number in self._made:
            return _Inner(
                number, tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.dtype
            )
        if number not in self._before:
            storage = tensor.untyped_storage()
            self._before[number] = (storage, storage.clone())
        # Drop the autograd graph.
        return tensor.detach()

    def _memory_made(self, tensor: torch.Tensor) -> int:
        """Return the number of the memory if the last call created it, else -1."""
        number = self._numbers.number_of(tensor)
        if number in self._made or number in self._before:
            return -1
        self._made[number] = weakref.ref(tensor.untyped_storage())
        return number


@contextmanager
def _below_torch() -> Iterator[None]:
    """Run captured operators again: they are already recorded, differentiated and cast."""
    with without_modes(), torch.no_grad(), torch._C._DisableAutocast():
        yield


def _inner_of(call: _Call) -> list[_Inner]:
    found: list[_Inner] = []

    def note(value: _Inner) -> _Inner:
        found.append(value)
        return value

    _with_tensors(call.args, note)
    _with_tensors(tuple(call.kwargs.values()), note)
    return found


def _with_tensors(value: Any, found: Callable[[_Inner], Any]) -> Any:
    """Return a value with ``found`` applied to graph memory, also in lists and tuples."""
    if isinstance(value, _Inner):
        return found(value)
    if isinstance(value, (list, tuple)):
        items = [_with_tensors(item, found) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value

"""Reads, copies and the backward pass's way to its thread, by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from breakeven.measure import DeviceTimer

Call = Callable[[], object]
# Makes the tensors, and returns the call.
Build = Callable[[], Call]

_NUM_READS = 768
_COPIED_BYTES = (4, 2**12, 2**16, 2**20, 2**23, 2**26)
# Of the GPU's clock: some 0.1 ms.
_WORK_CYCLES = 200_000


def single_calls(timer: DeviceTimer) -> Iterator[tuple[str, Build]]:
    """Yield each by its name."""
    yield from _reads(timer)
    for num_bytes in _COPIED_BYTES:
        for is_pinned in (False, True):
            yield from _copies(timer, num_bytes, is_pinned=is_pinned)
    yield "product, backward", lambda: _backward(timer, has_own_thread=True)
    yield "product, backward in the caller's thread", lambda: _backward(timer, has_own_thread=False)


def _reads(timer: DeviceTimer) -> Iterator[tuple[str, Build]]:
    """Yield reads with nothing to wait for (call and copy), behind a kernel, and behind work.

    What ``work, item`` takes beyond ``work`` and ``item`` is waking up.
    """
    one, many = (torch.ones(size, device=timer.device) for size in (1, _NUM_READS))

    def kernel() -> object:
        return one.add_(1)

    def work() -> object:
        return torch.cuda._sleep(_WORK_CYCLES)

    def both(first: Call, second: Call) -> Build:
        return lambda: lambda: (first(), second())

    wait = timer.synchronize
    yield "kernel", lambda: kernel
    yield "synchronize", lambda: wait
    yield "item", lambda: one.item
    yield "kernel, synchronize", both(kernel, wait)
    yield "kernel, item", both(kernel, one.item)
    yield "work", lambda: work
    yield "work, synchronize", both(work, wait)
    yield "work, item", both(work, one.item)
    yield "slice, item", lambda: lambda: many[1].item()
    yield f"tolist of {_NUM_READS}", lambda: many.tolist


def _copies(timer: DeviceTimer, num_bytes: int, *, is_pinned: bool) -> Iterator[tuple[str, Build]]:
    def build(*, is_read: bool) -> Call:
        here = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=is_pinned)
        there = here.to(timer.device, copy=True)
        source, target = (there, here) if is_read else (here, there)

        def copy() -> None:
            target.copy_(source, non_blocking=is_pinned)
            timer.synchronize()

        return copy

    kind = f"{'pinned' if is_pinned else 'pageable'} {num_bytes} bytes, synchronize"
    yield f"H2D {kind}", lambda: build(is_read=False)
    yield f"D2H {kind}", lambda: build(is_read=True)


def _backward(timer: DeviceTimer, *, has_own_thread: bool) -> Call:
    """Return a product and its backward pass: the two kinds differ by the handover."""
    leaf = torch.ones(1, device=timer.device, requires_grad=True)
    scale = torch.ones(1, device=timer.device)

    def backward() -> None:
        with torch.autograd.set_multithreading_enabled(has_own_thread):
            torch.autograd.grad(leaf * scale, leaf)

    return backward

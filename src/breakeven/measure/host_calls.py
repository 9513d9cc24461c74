"""The calls by which a host is measured: operators of one element, modules, backward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from breakeven.timing import Clock

NUM_LIST_TENSORS = 64
NUM_CHAINED = 64
_CALLS = 100
_LIBRARY_CALLS = 20


def host_calls() -> Iterator[Timed]:
    """Yield what is timed on the CPU.

    Of an operator on one element what is left is argument parsing, the dispatcher, autograd and
    the allocation of the result, the same code that a device's operator passes through before
    its launch. The kernel of one element itself takes some 50 ns.
    """
    one, other = torch.ones(1), torch.ones(1)
    leaf = torch.ones(1, requires_grad=True)
    module = torch.nn.Identity()
    yield Timed(code="op", call=lambda: torch.mul(one, other), calls=_CALLS)
    yield Timed(code="recorded", call=lambda: torch.mul(leaf, other), calls=_CALLS)
    yield Timed(code="view", call=lambda: one.view(1), calls=_CALLS)
    yield Timed(code="module", call=lambda: module(one), calls=_CALLS)
    yield _list_call("foreach_one", 1)
    yield _list_call("foreach_many", NUM_LIST_TENSORS)
    yield _backward_call("backward_one", 1)
    yield _backward_call("backward_many", NUM_CHAINED)
    yield from _library_calls()


def _list_call(code: str, num_tensors: int) -> Timed:
    tensors = [torch.ones(1) for _ in range(num_tensors)]
    multiply = torch._foreach_mul_  # pyright: ignore[reportPrivateImportUsage]
    return Timed(
        code=code, call=lambda: multiply(tensors, 1.0), calls=max(1, _CALLS // num_tensors)
    )


def _backward_call(code: str, length: int) -> Timed:
    """Return a backward pass over a chain of products, which is built out of the time."""
    leaf = torch.ones(1, requires_grad=True)
    scale = torch.ones(1)
    chains: list[torch.Tensor] = []

    def prepare() -> None:
        leaf.grad = None
        chain = leaf
        for _ in range(length):
            chain = torch.mul(chain, scale)
        chains[:] = [chain]

    return Timed(code=code, call=lambda: chains[0].backward(), calls=1, prepare=prepare)


def _library_calls() -> Iterator[Timed]:
    row, square = torch.ones(1, 1), torch.ones(1, 1)
    image, weight = torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    pair = torch.ones(2, 1, 1, 1)
    calls: dict[str, Callable[[], object]] = {
        "linear": lambda: functional.linear(row, square),
        "convolution": lambda: functional.conv2d(image, weight),
        "batch_norm": lambda: functional.batch_norm(pair, None, None, training=True),
        "layer_norm": lambda: functional.layer_norm(row, (1,)),
    }
    for code, call in calls.items():
        yield Timed(code=code, call=call, calls=_LIBRARY_CALLS)


# Far less than the 1,024 launches that a device's queue holds: the host never waits for it.
_QUEUED_CALLS = 200
_WAITED_CALLS = 10


def launch_calls(issue: Callable[[], object], wait: Callable[[], object]) -> Iterator[Timed]:
    """Yield what is timed on a device that is here.

    Args:
        issue: Enqueues one small kernel.
        wait: Waits for the device.
    """

    def issue_and_wait() -> None:
        issue()
        wait()

    yield Timed(code="cuda_queued", call=issue, calls=_QUEUED_CALLS)
    yield Timed(code="cuda_waited", call=issue_and_wait, calls=_WAITED_CALLS)
    yield Timed(code="cuda_sync", call=wait, calls=_WAITED_CALLS)


def small_kernel(device: str = "cuda") -> Callable[[], object]:
    """Return a call that enqueues a product of one element on ``device``."""
    one, other = torch.ones(1, device=device), torch.ones(1, device=device)
    return lambda: torch.mul(one, other)


_WARMUP_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Something that is timed once a round.

    Args:
        code: Its name among the others.
        call: What is timed.
        calls: How often it is called in a round.
        prepare: Called before each round, out of the time.
    """

    code: str
    call: Callable[[], object]
    calls: int
    prepare: Callable[[], object] | None = None


def time_rounds(
    timed: Sequence[Timed], clock: Clock, num_rounds: int
) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return nanoseconds per call of each, one value a round; rounds to warm up do not count."""
    times = {item.code: np.zeros(num_rounds) for item in timed}
    for number in range(-_WARMUP_ROUNDS, num_rounds):
        for item in timed:
            if item.prepare is not None:
                item.prepare()
            clock.synchronize()
            started_ns = clock.now_ns()
            for _ in range(item.calls):
                item.call()
            elapsed_ns = clock.now_ns() - started_ns
            if number >= 0:
                times[item.code][number] = elapsed_ns / item.calls
    return times

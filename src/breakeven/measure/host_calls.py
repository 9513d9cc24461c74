"""The calls by which a host is measured: operators of one element, modules, backward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from breakeven.measure.rounds import Timed

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

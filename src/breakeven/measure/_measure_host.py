"""What this host spends to issue an operator, measured in under half a second."""

from __future__ import annotations

import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from breakeven.device import HostSpec
from breakeven.measure._clock import HostClock
from breakeven.timing import Clock

_CALLS = 400
_ROUNDS = 7
_NUM_TENSORS = 64


def measure_host(clock: Clock | None = None) -> HostSpec:
    """Return the costs of this host per operator.

    One-element tensors on the CPU: what is left of an operator is Python, argument parsing, the
    dispatcher, autograd and the allocation of the result, the same code that a CUDA operator
    passes through before its launch. The kernel of one element itself takes some 50 ns.

    Args:
        clock: Injected in tests; the host's own by default.
    """
    clock = clock or HostClock()
    one = torch.ones(1)
    other = torch.ones(1)
    leaf = torch.ones(1, requires_grad=True)
    op_ns = _time_calls(clock, lambda: torch.mul(one, other))
    recorded_ns = _time_calls(clock, lambda: torch.mul(leaf, other))
    view_ns = _time_calls(clock, lambda: one.view(1))
    few, many = _foreach_ns(clock, 1), _foreach_ns(clock, _NUM_TENSORS)
    foreach_tensor_ns = max(0.0, (many - few) / (_NUM_TENSORS - 1))
    # On the CPU a foreach operator is a loop over tensors: each costs an operator there, and only
    # the packing of its pointers on CUDA, which a tenth of it stands for.
    tensor_share = 0.1
    return HostSpec(
        id="here",
        name=cpu_name(),
        op_ns=op_ns,
        autograd_ns=max(0.0, recorded_ns - op_ns),
        backward_ns=_backward_ns(clock),
        foreach_ns=few,
        foreach_tensor_ns=foreach_tensor_ns * tensor_share,
        view_ns=view_ns,
        source=(
            f"measured on {cpu_name()}, {datetime.now(tz=UTC):%Y-%m-%d}, "
            f"torch {torch.__version__}, Python {platform.python_version()}"
        ),
    )


def cpu_name() -> str:
    """Return the processor's name, as the operating system gives it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _time_calls(clock: Clock, call: Callable[[], object], calls: int = _CALLS) -> float:
    """Return the time of one call in nanoseconds, the median of several rounds."""
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        started_ns = clock.now_ns()
        for _ in range(calls):
            call()
        rounds.append((clock.now_ns() - started_ns) / calls)
    # The first round warms up.
    return median(rounds[1:])


def _foreach_ns(clock: Clock, num_tensors: int) -> float:
    tensors = [torch.ones(1) for _ in range(num_tensors)]
    multiply = torch._foreach_mul_  # pyright: ignore[reportPrivateImportUsage]
    return _time_calls(clock, lambda: multiply(tensors, 1.0), max(1, _CALLS // num_tensors))


def _backward_ns(clock: Clock) -> float:
    """Return the time of one operator of the backward pass, from a long chain of them."""
    length = 100
    leaf = torch.ones(1, requires_grad=True)
    scale = torch.ones(1)
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        chain = leaf
        for _ in range(length):
            chain = torch.mul(chain, scale)
        started_ns = clock.now_ns()
        torch.autograd.grad(chain, leaf, torch.ones(1))
        rounds.append((clock.now_ns() - started_ns) / length)
    return median(rounds[1:])

"""The host's cost to issue an operator, and the rates of one CPU core.

Each takes well under a second to measure.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import numpy as np
import torch
from torch.nn import functional

from breakeven.cost import (
    DEVICE_OPS,
    MODULE_CALLS,
    VIEW_MODULE_CALLS,
    HostMeasures,
    host_of,
    launch_costs,
)
from breakeven.device import HERE, DeviceWork, HostCalibration, HostFigure, known_device
from breakeven.measure.step_timer import GpuClock, HostClock
from breakeven.processor import cpu_name
from breakeven.simulate import CpuRates
from breakeven.timing import Clock, Estimate, Source

_QUICK_ROUNDS = 60
_LAUNCH_ROUNDS = 20

# Error of the host time of a step if every cost was measured. For the eight networks above,
# predicted forward times were 0.75 to 1.30 times the measured ones. That holds on the CPU used to
# choose them: a device's share, other machines and other code add error.
_MEASURED_LOG_SIGMA = 0.25

_DECILES_PER_SIGMA = 2.563  # from the 10th to the 90th percentile of a normal distribution

_Rounds = np.ndarray[tuple[int], np.dtype[np.float64]]


def measure_host(clock: Clock | None = None, *, num_rounds: int = _QUICK_ROUNDS) -> HostCalibration:
    """Return this host's costs per operator, and the measurements behind them.

    Args:
        clock: The host's own by default; tests inject one.
        num_rounds: Number of rounds; each measures every cost once, in some 2 ms.
    """
    with _one_thread():
        times = dict(time_rounds(tuple(host_calls()), clock or HostClock(), num_rounds))
    device_name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    if device_name:
        cuda_clock = GpuClock()
        calls = (
            *launch_calls(small_kernel(), cuda_clock.synchronize),
            _backward_call("cuda_backward", 1, device="cuda"),
        )
        times |= time_rounds(calls, cuda_clock, _LAUNCH_ROUNDS)
    return calibration_of(times, num_rounds=num_rounds, device_name=device_name)


def calibration_of(
    times: Mapping[str, _Rounds], *, num_rounds: int, device_name: str
) -> HostCalibration:
    """Return the host's costs that follow from times per call.

    Args:
        times: Nanoseconds per call in each round, by the code of the call.
        num_rounds: Number of rounds on the CPU.
        device_name: The CUDA device of the launches in ``times``; empty without one.
    """
    # The short pass is noisier than all others: subtract its median, not its rounds.
    short_ns = float(np.median(times["backward_one"]))
    per_op = (times["backward_many"] - short_ns) / (NUM_CHAINED - 1)
    rounds = {code: values for code, values in times.items() if code in _FIGURES} | {
        "autograd": times["recorded"] - times["op"],
        "backward": per_op,
        "backward_call": times["backward_one"] - float(np.median(per_op)),
        "foreach": times["foreach_one"],
        "foreach_tensor": (times["foreach_many"] - times["foreach_one"]) / (NUM_LIST_TENSORS - 1),
    }
    cost = {code: max(0.0, float(np.median(values))) for code, values in rounds.items()}
    fields = HostMeasures.__struct_fields__
    measures = HostMeasures(**{field: cost[field.removesuffix("_ns")] for field in fields})
    device_ns, how = _device_share(cost, device_name)
    # The standard deviation of the logarithm, outliers apart.
    low_ns, high_ns = (float(value) for value in np.percentile(rounds["op"], (10, 90)))
    log_spread = math.log(high_ns / low_ns) / _DECILES_PER_SIGMA if low_ns > 0 else 0.0
    host = host_of(
        measures,
        host_id=HERE,
        name=cpu_name(),
        log_sigma=math.hypot(_MEASURED_LOG_SIGMA, log_spread),
        device_ns=device_ns,
        source=(
            f"measured on {cpu_name()}, {datetime.now(tz=UTC):%Y-%m-%d}, "
            f"torch {torch.__version__}, Python {platform.python_version()}; {how}"
        ),
        assumption=how,
    )
    if "cuda_backward" in cost:
        # Subtract the host time of its two kernels beyond that of CPU operators.
        kernels_ns = 2 * (cost["cuda_queued"] - cost["op"])
        handoff_ns = max(0.0, cost["cuda_backward"] - short_ns - kernels_ns)
        host = msgspec.structs.replace(host, device_work=DeviceWork(handoff_ns=handoff_ns))
    figures: list[HostFigure] = []
    for code, (title, used_for) in _FIGURES.items():
        if code in rounds:
            low, middle, high = (float(ns) for ns in np.percentile(rounds[code], (10, 50, 90)))
            figures.append(
                HostFigure(
                    code=code, title=title, median_ns=middle, low_ns=low, high_ns=high,
                    used_for=used_for,
                )
            )  # fmt: skip
    return HostCalibration(
        host=host, figures=tuple(figures), num_rounds=num_rounds, device_name=device_name
    )


# Title and use of each figure that is shown, by code.
_FIGURES = {
    "op": ("operator, torch.mul", "every operator"),
    "autograd": ("recorded for backward, more", "forward pass"),
    "module": (
        "call of an empty module",
        f"Python, ×{MODULE_CALLS:g}, of views ×{VIEW_MODULE_CALLS:g}",
    ),
    "view": ("view", "views"),
    "backward": ("operator run backward", "backward pass"),
    "backward_call": ("loss.backward() itself", "backward pass"),
    "foreach": ("foreach operator", "optimizers"),
    "foreach_tensor": ("each tensor of it", "optimizers, a tenth"),
    "linear": ("linear", ""),
    "convolution": ("convolution", ""),
    "batch_norm": ("batch norm", ""),
    "layer_norm": ("layer norm", ""),
    "cuda_queued": ("operator queued on the GPU", "every operator"),
    "cuda_waited": ("the same, waited for", ""),
    "cuda_sync": ("sync of an idle GPU", ""),
    "cuda_backward": ("loss.backward() on the GPU", "backward pass"),
}


def _device_share(cost: Mapping[str, float], device_name: str) -> tuple[float | None, str]:
    """Return the extra host cost of a device's operator, or None if unknown, and its source."""
    assumed = f"a device's share of an operator taken as {DEVICE_OPS:g} times that of a CPU"
    if not device_name:
        return None, assumed
    device = known_device(device_name)
    if device is None:
        return None, f"{assumed}, since {device_name} is not known"
    return (
        max(0.0, cost["cuda_queued"] - launch_costs(device).launch_ns - cost["op"]),
        f"a device's share of an operator measured on {device_name}",
    )


NUM_LIST_TENSORS = 64
NUM_CHAINED = 64
_CALLS = 100
_LIBRARY_CALLS = 20


def host_calls() -> Iterator[TimedCall]:
    """Yield the calls to time on the CPU.

    An operator on one element costs argument parsing, the dispatcher, autograd and the allocation
    of the result. A device's operator runs the same code before its launch. The kernel of one
    element takes some 50 ns.
    """
    one, other = torch.ones(1), torch.ones(1)
    leaf = torch.ones(1, requires_grad=True)
    module = torch.nn.Identity()
    yield TimedCall(code="op", call=lambda: torch.mul(one, other), calls=_CALLS)
    yield TimedCall(code="recorded", call=lambda: torch.mul(leaf, other), calls=_CALLS)
    yield TimedCall(code="view", call=lambda: one.view(1), calls=_CALLS)
    yield TimedCall(code="module", call=lambda: module(one), calls=_CALLS)
    yield _list_call("foreach_one", 1)
    yield _list_call("foreach_many", NUM_LIST_TENSORS)
    yield _backward_call("backward_one", 1)
    yield _backward_call("backward_many", NUM_CHAINED)
    yield from _library_calls()


def _list_call(code: str, num_tensors: int) -> TimedCall:
    tensors = [torch.ones(1) for _ in range(num_tensors)]
    multiply = torch._foreach_mul_  # pyright: ignore[reportPrivateImportUsage]
    return TimedCall(
        code=code, call=lambda: multiply(tensors, 1.0), calls=max(1, _CALLS // num_tensors)
    )


def _backward_call(code: str, length: int, *, device: str = "cpu") -> TimedCall:
    """Return a backward pass over a chain of products; building the chain is not timed."""
    leaf = torch.ones(1, requires_grad=True, device=device)
    scale = torch.ones(1, device=device)
    chains: list[torch.Tensor] = []

    def prepare() -> None:
        leaf.grad = None
        chain = leaf
        for _ in range(length):
            chain = torch.mul(chain, scale)
        chains[:] = [chain]

    return TimedCall(code=code, call=lambda: chains[0].backward(), calls=1, prepare=prepare)


def _library_calls() -> Iterator[TimedCall]:
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
        yield TimedCall(code=code, call=call, calls=_LIBRARY_CALLS)


# Far fewer than the 1,024 launches in a device's queue: the host never waits for it.
_QUEUED_CALLS = 200
_WAITED_CALLS = 10


def launch_calls(issue: Callable[[], object], wait: Callable[[], object]) -> Iterator[TimedCall]:
    """Yield the calls to time on this machine's device.

    Args:
        issue: Enqueues one small kernel.
        wait: Waits for the device.
    """

    def issue_and_wait() -> None:
        issue()
        wait()

    yield TimedCall(code="cuda_queued", call=issue, calls=_QUEUED_CALLS)
    yield TimedCall(code="cuda_waited", call=issue_and_wait, calls=_WAITED_CALLS)
    yield TimedCall(code="cuda_sync", call=wait, calls=_WAITED_CALLS)


def small_kernel(device: str = "cuda") -> Callable[[], object]:
    """Return a call that enqueues a product of one element on ``device``."""
    one, other = torch.ones(1, device=device), torch.ones(1, device=device)
    return lambda: torch.mul(one, other)


_WARMUP_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class TimedCall:
    """A call to time once per round.

    Args:
        code: Unique name of the call.
        call: The function to time.
        calls: Number of calls per round.
        prepare: Runs before each round, untimed.
    """

    code: str
    call: Callable[[], object]
    calls: int
    prepare: Callable[[], object] | None = None


def time_rounds(timed: Sequence[TimedCall], clock: Clock, num_rounds: int) -> dict[str, _Rounds]:
    """Return the nanoseconds per call in each round, by code; warm-up rounds do not count."""
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


# A product large enough to reach the core's peak rate, and copies that fit no cache.
_WIDTH = 1024
_COPIED_BYTES = 128 * 2**20
_NUM_RATE_ROUNDS = 7
_LEAST_CALLS = 2


def measure_cpu_rates() -> CpuRates:
    """Return the rates of one core, by processor time, which excludes other processes."""
    with _one_thread():
        left, right = torch.rand(2, _WIDTH, _WIDTH)
        result = torch.empty_like(left)
        product_ns = _shortest_ns(lambda: torch.mm(left, right, out=result))
        source = torch.rand(_COPIED_BYTES // 4)
        target = torch.empty_like(source)
        copy_ns = _shortest_ns(lambda: target.copy_(source))
    return CpuRates(
        num_cores=1,
        flop_per_s=2 * _WIDTH**3 / product_ns * 1e9,
        bytes_per_s=2 * _COPIED_BYTES / copy_ns * 1e9,
    )


def time_on_one_core(step: Callable[[], object], *, budget_s: float) -> Estimate:
    """Return the shortest time of a step on one core; the first call only warms up.

    Args:
        step: Does one step.
        budget_s: Seconds of steps to take; at least one step is timed.
    """
    times: list[int] = []
    with _one_thread():
        end = time.monotonic() + budget_s
        while time.monotonic() < end or len(times) < _LEAST_CALLS:
            times.append(_process_ns(step))
    shortest_ns = float(min(times[1:]))
    return Estimate(
        value_ns=shortest_ns, low_ns=shortest_ns, high_ns=shortest_ns, source=Source.MEASURED
    )


def _shortest_ns(call: Callable[[], object]) -> float:
    return min(_process_ns(call) for _ in range(_NUM_RATE_ROUNDS))


def _process_ns(call: Callable[[], object]) -> int:
    start = time.process_time_ns()
    call()
    return time.process_time_ns() - start


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread, so that no call waits for threads that a busy machine delays."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)

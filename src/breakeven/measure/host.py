"""What this host spends to issue an operator, measured in well under a second."""

from __future__ import annotations

import contextlib
import math
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import numpy as np
import torch

from breakeven.cost import (
    DEVICE_OPS,
    MODULE_CALLS,
    VIEW_MODULE_CALLS,
    HostMeasures,
    host_of,
    launch_costs,
)
from breakeven.device import HERE, HostCalibration, HostFigure, find_device
from breakeven.errors import UnknownDeviceError
from breakeven.measure.host_calls import (
    NUM_CHAINED,
    NUM_LIST_TENSORS,
    host_calls,
    launch_calls,
    small_kernel,
    time_rounds,
)
from breakeven.measure.step_timer import GpuClock, HostClock
from breakeven.processor import cpu_name
from breakeven.timing import Clock

_QUICK_ROUNDS = 60
_LAUNCH_ROUNDS = 20

# Of what a step spends on a host of which all was measured. Of the eight networks above, predicted
# forward times lay within 0.75 to 1.30 of the measured ones on the CPU that they were chosen on; a
# device's share, other machines and other code add to that.
_MEASURED_LOG_SIGMA = 0.25

_DECILES_PER_SIGMA = 2.563  # between the tenth and the ninetieth percentile of a normal

_Rounds = np.ndarray[tuple[int], np.dtype[np.float64]]


def measure_host(clock: Clock | None = None, *, num_rounds: int = _QUICK_ROUNDS) -> HostCalibration:
    """Return the costs of this host per operator, and what they were computed from.

    Args:
        clock: Injected in tests; the host's own by default.
        num_rounds: Each measures everything once, in some 2 ms.
    """
    with _one_thread():
        times = dict(time_rounds(tuple(host_calls()), clock or HostClock(), num_rounds))
    device_name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    if device_name:
        cuda_clock = GpuClock()
        calls = tuple(launch_calls(small_kernel(), cuda_clock.synchronize))
        times |= time_rounds(calls, cuda_clock, _LAUNCH_ROUNDS)
    return calibration_of(times, num_rounds=num_rounds, device_name=device_name)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keep the library's calls from waiting for other threads, which a busy machine delays."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def calibration_of(
    times: Mapping[str, _Rounds], *, num_rounds: int, device_name: str
) -> HostCalibration:
    """Return what times per call say about the host.

    Args:
        times: Nanoseconds per call in each round, by the code of what was called.
        num_rounds: Rounds on the CPU.
        device_name: The CUDA device whose launches are among the times; empty without one.
    """
    # The short pass is disturbed more than all else, so that its median is taken, not its rounds.
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
    host = host_of(
        measures,
        host_id=HERE,
        name=cpu_name(),
        log_sigma=math.hypot(_MEASURED_LOG_SIGMA, _log_spread(rounds["op"])),
        device_ns=device_ns,
        source=(
            f"measured on {cpu_name()}, {datetime.now(tz=UTC):%Y-%m-%d}, "
            f"torch {torch.__version__}, Python {platform.python_version()}; {how}"
        ),
        assumption=how,
    )
    figures = tuple(
        _figure(code, title, used_for, rounds[code])
        for code, (title, used_for) in _FIGURES.items()
        if code in rounds
    )
    return HostCalibration(
        host=host, figures=figures, num_rounds=num_rounds, device_name=device_name
    )


# What is shown, by its code: a title, and what it is used for.
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
}


def _device_share(cost: Mapping[str, float], device_name: str) -> tuple[float | None, str]:
    """Return what an operator of a device costs the host more, if known, and how that is known."""
    assumed = f"a device's share of an operator taken as {DEVICE_OPS:g} times that of a CPU"
    if not device_name:
        return None, assumed
    try:
        launch_ns = launch_costs(find_device(device_name)).launch_ns
    except UnknownDeviceError:
        return None, f"{assumed}, since {device_name} is not known"
    return (
        max(0.0, cost["cuda_queued"] - launch_ns - cost["op"]),
        f"a device's share of an operator measured on {device_name}",
    )


def _figure(code: str, title: str, used_for: str, rounds_ns: _Rounds) -> HostFigure:
    low, middle, high = (float(value) for value in np.percentile(rounds_ns, (10, 50, 90)))
    return HostFigure(
        code=code, title=title, median_ns=middle, low_ns=low, high_ns=high, used_for=used_for
    )


def _log_spread(rounds_ns: _Rounds) -> float:
    """Return the standard deviation of the logarithm of the rounds, outliers apart."""
    low, high = (float(value) for value in np.percentile(rounds_ns, (10, 90)))
    return math.log(high / low) / _DECILES_PER_SIGMA if low > 0 else 0.0

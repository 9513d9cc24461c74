"""Small recurrent layers, whose time steps cuDNN takes within one kernel.

From version 8.2.1 it has an algorithm for few hidden units, which keeps the weights on the chip:
CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H. torch picks it by the size of the layer alone, from 1.10 on.
The host launches one kernel per layer and direction instead of some for each time step, and a step
waits for little more than its own arithmetic.
Source: use_rnn_persist_small_h and get_algo in aten/src/ATen/native/cudnn/RNN.cpp.
"""

from __future__ import annotations

import msgspec

from breakeven.cost.kernel import Kernel
from breakeven.device import DeviceSpec, Precision

_PREFIX = "small_"

# Most hidden units, forward and backward, of plain layers and of those with gates.
_MOST_UNITS = {"rnn": (384, 256), "lstm": (192, 128), "gru": (192, 128)}

# Cycles of a time step forward; bf16 is not among them, as cuDNN has no such kernel for it, nor
# torch for fp64. Source: one layer of 64 units, 50 steps, batch 32, on an H200 (torch 2.11, cuDNN
# 9.19), LSTM and GRU: 0.96 µs a step in fp32, 1.46 to 1.50 in fp16; in bf16 6.6 to 8.5, as layers
# of 256 units. TF32 was not measured and stands beside fp32.
_STEP_CYCLES = {Precision.FP32: 1_900, Precision.TF32: 1_900, Precision.FP16: 2_900}
# Judgement: nobody timed it alone.
_BACKWARD_FACTOR = 2

# torch asks for compute capability 6.0, which came with Pascal.
_GENERATIONS_BEFORE = ("kepler", "maxwell")


def in_one_kernel(kernel: Kernel, *, hidden_size: int, num_sweeps: int) -> Kernel:
    """Return the time steps of a layer as today's software runs them.

    Args:
        kernel: With a launch for each time step; not of packed sequences, nor with a projection.
        hidden_size: Of the layer.
        num_sweeps: Layers times directions.
    """
    name, _, direction = kernel.variant.partition("_")
    if hidden_size > _MOST_UNITS[name][direction == "backward"]:
        return kernel
    if kernel.precision not in _STEP_CYCLES:
        return kernel
    return msgspec.structs.replace(
        kernel,
        variant=_PREFIX + kernel.variant,
        launches=num_sweeps,
        num_steps=kernel.launches // num_sweeps,
    )


def is_in_one_kernel(variant: str) -> bool:
    """Return whether each launch of such kernels is of all time steps."""
    return variant.startswith(_PREFIX)


def step_by_step(kernel: Kernel) -> Kernel:
    """Return a kernel with a launch for each time step, as older software has it."""
    if not is_in_one_kernel(kernel.variant):
        return kernel
    return msgspec.structs.replace(
        kernel,
        variant=kernel.variant.removeprefix(_PREFIX),
        launches=kernel.launches * kernel.num_steps,
        num_steps=1,
    )


def steps_on(kernel: Kernel, device: DeviceSpec) -> Kernel:
    """Return the time steps as ``device`` takes them."""
    is_able = device.vendor == "nvidia" and device.launch_generation not in _GENERATIONS_BEFORE
    return kernel if is_able else step_by_step(kernel)


def step_cycles(kernel: Kernel) -> float:
    """Return what a time step of such a kernel waits beside its arithmetic, in cycles.

    Latencies follow the clock, not the number of units.
    """
    factor = _BACKWARD_FACTOR if kernel.variant.endswith("backward") else 1
    return float(factor * _STEP_CYCLES[kernel.precision])

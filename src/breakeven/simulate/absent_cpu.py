"""A step on a CPU that is not here, from its time on this one.

What the step took here says how well its operators use a CPU: vector units, caches, Python. To
another CPU it is carried over by the ratio of the two rooflines, each operator limited by what all
cores compute or by what memory delivers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from breakeven.device import HostCpu
from breakeven.errors import BreakevenError
from breakeven.simulate.program import Program
from breakeven.timing import Estimate

# A step does not share out evenly: of n cores it uses n to this power. With the width below fitted
# to inference of one image by 45 architectures on a Core i9-10940X, from one core of an AMD EPYC:
# `benchmarks/absent_cpu.py`, which also leaves each family of architectures out.
CORES_POWER = 0.645
# Standard deviation of the logarithm of a time.
LOG_SIGMA = 0.285
_QUANTILE_90 = 1.645


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRates:
    """What a CPU can do at most, in fp32.

    Args:
        num_cores: Cores that share a step.
        flop_per_s: Of one core.
        bytes_per_s: From memory, of all these cores together.
    """

    num_cores: int
    flop_per_s: float
    bytes_per_s: float


def rates_of(cpu: HostCpu) -> CpuRates:
    """Return the rates of a CPU from its datasheet.

    Raises:
        BreakevenError: The catalogue does not have what it takes.
    """
    figures = (cpu.vector_flop_per_clock, cpu.sustained_hz, cpu.memory_bytes_per_s)
    if any(figure is None for figure in figures):
        raise BreakevenError(
            f"the catalogue has no vector width, base clock and memory bandwidth of {cpu.name}",
            hint="add them to its entry in device/hosts.toml, with their source",
        )
    flop_per_clock, clock_hz, bytes_per_s = (figure or 0.0 for figure in figures)
    return CpuRates(
        num_cores=cpu.num_cores,
        flop_per_s=flop_per_clock * clock_hz,
        bytes_per_s=bytes_per_s,
    )


def predict_absent_cpu(
    program: Program,
    measured: Estimate,
    here: CpuRates,
    there: CpuRates,
    *,
    cores_power: float = CORES_POWER,
) -> Estimate:
    """Return the time of a step on another CPU, with its 90 % interval.

    Args:
        program: The step.
        measured: Its time on this CPU.
        here: This CPU, with the cores that the step was measured on.
        there: The other one.
        cores_power: Of how many cores a step uses as many as that.

    Raises:
        ValueError: The step has no operators to go by.
    """
    limit_ns = _roofline_ns(program, here, cores_power)
    if not limit_ns:
        raise ValueError("a step without operators says nothing about another CPU")
    value_ns = measured.value_ns * _roofline_ns(program, there, cores_power) / limit_ns
    width = _QUANTILE_90 * LOG_SIGMA
    return Estimate.predicted(
        value_ns,
        value_ns * math.exp(-math.hypot(width, _log(measured.value_ns, measured.low_ns))),
        value_ns * math.exp(math.hypot(width, _log(measured.high_ns, measured.value_ns))),
    )


def _log(above: float, below: float) -> float:
    return math.log(above / below)


def _roofline_ns(program: Program, cpu: CpuRates, cores_power: float) -> float:
    """Return what the operators take where nothing but the CPU's rates limits them."""
    used = cpu.num_cores**cores_power
    flop_per_s = cpu.flop_per_s * used
    # The same part of the cores asks for memory.
    bytes_per_s = cpu.bytes_per_s * used / cpu.num_cores
    return 1e9 * sum(
        max(kernel.flop / flop_per_s, kernel.num_bytes / bytes_per_s) for kernel in program.kernels
    )

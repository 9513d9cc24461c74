"""A step on another CPU, predicted from its time on this one.

The time of the issuing thread, Python and dispatcher, scales with the speed of one core. The rest
shows how well the operators use this CPU. It scales with the ratio of the two rooflines: the cores'
arithmetic or the memory's bandwidth limits each operator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from breakeven.device import HostCpu, HostSpec, load_host_cpus
from breakeven.errors import BreakevenError
from breakeven.simulate.cpu_step import cpu_op_ns, predict_cpu_step
from breakeven.simulate.program import Z_90, Program
from breakeven.timing import Estimate
from breakeven.trace import HostWork, Op, Phase

# A step does not divide evenly: n cores count as n to this power. This and LOG_SIGMA are fitted
# to inference of one image by 99 architectures on a Core i9-10940X, predicted from one core of
# an AMD EPYC: `benchmarks/absent_cpu.py`, which also leaves each family of architectures out.
CORES_POWER = 0.665
# Standard deviation of the logarithm of a time.
LOG_SIGMA = 0.235
# Number of known CPUs that an error lists for an unknown one.
_MOST_NAMED = 6
# Least time of a core's part of an operator: torch gives a core at least 32,768 elements, which it
# adds up or copies in about this time.
_LEAST_PART_NS = 15_000.0


class CpuRates(msgspec.Struct, frozen=True, kw_only=True):
    """The peak rates of a CPU in fp32.

    Args:
        num_cores: Cores that share a step.
        flop_per_s: Rate of one core.
        bytes_per_s: Memory bandwidth of all these cores together.
    """

    num_cores: int
    flop_per_s: float
    bytes_per_s: float

    def on_cores(self, num_cores: int) -> CpuRates:
        """Return the rates of ``num_cores`` such cores, with the same bandwidth per core."""
        bytes_per_s = self.bytes_per_s * num_cores / self.num_cores
        return CpuRates(num_cores=num_cores, flop_per_s=self.flop_per_s, bytes_per_s=bytes_per_s)


class CpuCosts(msgspec.Struct, frozen=True, kw_only=True):
    """This CPU, from whose step the step on another one is predicted.

    Args:
        host: Its costs per operator.
        core: Rates of one of its cores.
    """

    host: HostSpec
    core: CpuRates


def rates_of(cpu: HostCpu) -> CpuRates:
    """Return the rates of a CPU from its datasheet.

    Raises:
        BreakevenError: The table of CPUs lacks one of the figures.
    """
    figures = (cpu.vector_flop_per_clock, cpu.sustained_hz, cpu.memory_bytes_per_s)
    if any(figure is None for figure in figures):
        known = [one for one in load_host_cpus() if one.vector_flop_per_clock is not None]
        alike = [one.name for one in known if one.core == cpu.core][-_MOST_NAMED:]
        raise BreakevenError(
            f"cannot predict a step for the CPU {cpu.name}: the table lacks its vector width, "
            "base clock or memory bandwidth",
            hint=f"name a CPU that the table has in full, such as "
            f"{', '.join(alike or [known[-1].name])} (all: breakeven devices --hosts)",
        )
    flop_per_clock, clock_hz, bytes_per_s = (figure or 0.0 for figure in figures)
    return CpuRates(
        num_cores=cpu.num_cores,
        flop_per_s=flop_per_clock * clock_hz,
        bytes_per_s=bytes_per_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuing:
    """The time of the thread that issues a step.

    Args:
        here_ns: Time on this CPU.
        there_ns: Time on the other one.
        log_sigma: Standard deviation of the logarithm of the latter.
    """

    here_ns: float
    there_ns: float
    log_sigma: float


def issuing_of(program: Program, here: HostSpec, there: HostSpec) -> Issuing:
    """Return the time of a step whose operators have nothing to compute.

    Args:
        program: The step, with the script's own work between its operators.
        here: This CPU, measured.
        there: The other one, scaled by the speed of one of its cores.
    """
    # Cost of an operator's call on this host, without its arithmetic.
    op_ns, trace = cpu_op_ns(here), program.trace
    call_ns = dict.fromkeys(Phase, op_ns) | {
        Phase.FORWARD: op_ns + here.autograd_ns,
        Phase.BACKWARD: here.backward_ns - here.device_ns,
    }
    events = tuple(
        replace(event, host_ns=round(call_ns[event.phase])) if isinstance(event, Op) else event
        for event in trace.events
    )
    empty = Program(
        trace=replace(trace, events=events), lowerings=program.lowerings, costs=program.costs
    )
    works = (event for event in events if isinstance(event, HostWork) and not event.num_workers)
    here_ns = sum(work.duration_ns for work in works) + predict_cpu_step(empty, here).step_ns
    slowdown = cpu_op_ns(there) / op_ns
    return Issuing(here_ns=here_ns, there_ns=slowdown * here_ns, log_sigma=there.log_sigma)


def predict_absent_cpu(
    program: Program,
    measured: Estimate,
    here: CpuRates,
    there: CpuRates,
    issuing: Issuing,
    *,
    cores_power: float = CORES_POWER,
) -> Estimate:
    """Return the time of a step on another CPU, with its 90 % interval.

    Args:
        program: The step.
        measured: Its time on this CPU.
        here: This CPU, with the cores that the step was measured on.
        there: The other one.
        issuing: Time to issue the step on both; on this CPU at most the whole step.
        cores_power: Power of the number of cores that a step uses well.

    Raises:
        ValueError: The step has no operators.
    """
    # Memory bandwidth of one core alone, on any of these CPUs.
    core_bytes_per_s = here.bytes_per_s / here.num_cores

    def roofline_ns(cpu: CpuRates) -> float:
        """Return the time of the operators if only the CPU's rates limit them."""
        total_ns = 0.0
        for kernel in program.kernels:
            computing_ns = 1e9 * kernel.flop / cpu.flop_per_s
            alone_ns = max(computing_ns, 1e9 * kernel.num_bytes / core_bytes_per_s)
            used = min(max(alone_ns / _LEAST_PART_NS, 1.0), cpu.num_cores) ** cores_power
            bytes_per_s = min(core_bytes_per_s * used, cpu.bytes_per_s)
            total_ns += max(computing_ns / used, 1e9 * kernel.num_bytes / bytes_per_s)
        return total_ns

    limit_ns = roofline_ns(here)
    if not limit_ns:
        raise ValueError("a step without operators says nothing about another CPU")
    issued_ns = min(issuing.here_ns, measured.value_ns)
    parts = (
        (issued_ns * issuing.there_ns / issuing.here_ns, issuing.log_sigma),
        ((measured.value_ns - issued_ns) * roofline_ns(there) / limit_ns, LOG_SIGMA),
    )
    value_ns = sum(part_ns for part_ns, _ in parts)
    # Both errors may have the same sign.
    low_ns, high_ns = (
        sum(part_ns * math.exp(sign * Z_90 * sigma) for part_ns, sigma in parts) for sign in (-1, 1)
    )
    low, high = math.log(low_ns / value_ns), math.log(high_ns / value_ns)
    return Estimate.predicted(
        value_ns,
        value_ns * math.exp(-math.hypot(low, math.log(measured.value_ns / measured.low_ns))),
        value_ns * math.exp(math.hypot(high, math.log(measured.high_ns / measured.value_ns))),
    )

"""The step on CPUs that are not here, as results of a report."""

from __future__ import annotations

from collections.abc import Iterable

from breakeven.calibrate import named_host
from breakeven.device import HostCpu
from breakeven.errors import Caveat, has_caveat
from breakeven.session.compared_step import LiveStep
from breakeven.simulate import CpuRates, issuing_of, predict_absent_cpu, rates_of
from breakeven.timing import EMULATED_ON_CPU
from breakeven.verdict import DeviceResult, cpu_on_cores, cpu_result

# A CPU's rates are known in fp32; in fp64 all of them have half of it.
_PRECISIONS = ("fp32", "tf32", "fp64")

_TESTED = Caveat(
    code="absent-cpu",
    message="carried over from this CPU by cores, vector width, clock and memory bandwidth. The "
    "interval was tested on inference by networks of images on one CPU of 14 cores: no other CPU, "
    "and no training",
)


def check_absent_cpus(cpus: Iterable[HostCpu]) -> None:
    """Raise `BreakevenError` for a CPU of which too little is known."""
    for cpu in cpus:
        rates_of(cpu)


def absent_cpu_results(
    step: LiveStep, cpus: Iterable[HostCpu], core: CpuRates
) -> tuple[tuple[DeviceResult, ...], tuple[Caveat, ...]]:
    """Return the step on other CPUs, on all cores of each; or why it is not predicted.

    Args:
        step: As it was measured here.
        cpus: The other ones.
        core: What one core of this CPU computes and moves.
    """
    measured = step.measured[0]
    is_emulated = has_caveat(measured.caveats, EMULATED_ON_CPU)
    if is_emulated or measured.precision not in _PRECISIONS:
        others = "a 16-bit format" if measured.precision in _PRECISIONS else measured.precision
        message = (
            f"the step is not predicted for other CPUs: it computes in {others}, and "
            "what CPUs compute a second is known in fp32 alone"
        )
        return (), (Caveat(code="absent-cpu-not-predicted", message=message),)
    program, here = step.path.program, core.on_cores(step.plain.num_threads)
    results: list[DeviceResult] = []
    for cpu in cpus:
        estimate = predict_absent_cpu(
            program,
            step.plain.measurement.estimate,
            here,
            rates_of(cpu),
            issuing_of(program, step.here, named_host(cpu.id)),
        )
        results.append(
            cpu_result(
                cpu_on_cores(cpu.name, cpu.num_cores),
                estimate,
                precision=measured.precision,
                fits=None,
                caveats=(_TESTED,),
            )
        )
    return tuple(results), ()

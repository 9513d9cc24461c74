"""Electricity of a training, and the carbon dioxide of generating it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from breakeven.cost import Family
from breakeven.device import DeviceSpec, Precision, generation_of
from breakeven.money.interval import Interval
from breakeven.money.machines import Machine
from breakeven.simulate import Program
from breakeven.timing import MachinePower
from breakeven.units import NS_PER_S


class PowerFit(msgspec.Struct, frozen=True, kw_only=True):
    """Power of a GPU's board over its TDP, by what the GPU does.

    Args:
        stacked_floor: Waiting for the next kernel, on boards with stacked memory (HBM).
        floor: The same on other boards.
        working: In kernels.
        recurrent: In recurrent layers, whose time steps leave most of the GPU idle.
        log_low: Logarithm of the low end over the figure.
        log_high: Logarithm of the high end over the figure.
    """

    stacked_floor: float
    floor: float
    working: float
    recurrent: float
    log_low: float
    log_high: float


# Source: mean board power over an epoch at the default limit, 218 rows of A40, V100 PCIe, Quadro
# RTX 6000 and P100 (ml-energy/zeus, NSDI'23, Apache-2.0); `python -m lab.energy` fits them.
POWER_FIT = PowerFit(
    stacked_floor=0.098, floor=0.235, working=0.941, recurrent=0.519, log_low=-0.23, log_high=0.32
)


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU does during a step.

    Args:
        working_fraction: Part of the step in which kernels compute or move data; their start is
            not included.
        recurrent_fraction: Part of this work in recurrent layers.
    """

    working_fraction: float
    recurrent_fraction: float = 0.0


class KernelWork(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernels of a step do on a GPU, whatever the step takes.

    Args:
        work_ns: Time in which kernels compute or move data; their start is not included.
        recurrent_fraction: Part of it in recurrent layers.
    """

    work_ns: float
    recurrent_fraction: float

    def during(self, step_ns: float) -> Activity:
        """Return what the GPU does during a step of ``step_ns``."""
        return Activity(
            working_fraction=min(self.work_ns / step_ns, 1.0),
            recurrent_fraction=self.recurrent_fraction,
        )


def kernel_work(program: Program, devices: Sequence[DeviceSpec]) -> tuple[KernelWork, ...]:
    """Return what the kernels of a step do on each GPU.

    Args:
        program: The step.
        devices: The GPUs.
    """
    kernels = program.kernels
    times = program.costs.kernel_times(kernels, devices)
    work_ns = np.maximum(times.time_ns - times.floor_ns, 0.0)
    is_recurrent = np.array([kernel.family is Family.RECURRENT for kernel in kernels], dtype=bool)
    return tuple(
        KernelWork(work_ns=total_ns, recurrent_fraction=part_ns / total_ns if total_ns else 0.0)
        for total_ns, part_ns in zip(
            work_ns.sum(axis=0).tolist(), work_ns[is_recurrent].sum(axis=0).tolist(), strict=True
        )
    )


def power_terms(device: DeviceSpec, activity: Activity) -> tuple[float, float, float, float]:
    """Return the factors of the four shares of a `PowerFit`, in its order.

    A board whose units need less than its TDP at full clock draws less, in proportion.
    """
    generation = generation_of(device)
    needs = [
        watts * device.peak_flop_per_s[precision] / device.tdp_watts
        for watts, precision in (
            (generation.watts_per_flop_per_s, Precision.FP32),
            (generation.watts_per_matrix_flop_per_s, Precision.FP16),
        )
        if watts is not None and device.has_precision(precision)
    ]
    need = min(max(needs, default=1.0), 1.0)
    # NVIDIA's chips whose name ends in 100 have HBM, as do AMD's of these architectures.
    is_stacked = device.chip.endswith("100") or device.architecture.startswith(("CDNA", "GCN5"))
    working, recurrent = activity.working_fraction, activity.recurrent_fraction
    waiting = 1.0 - working
    floors = (waiting, 0.0) if is_stacked else (0.0, waiting)
    return *floors, working * (1.0 - recurrent) * need, working * recurrent * need


def board_watts(device: DeviceSpec, activity: Activity, fit: PowerFit = POWER_FIT) -> Interval:
    """Return the mean power of a GPU's board during a step, at most its TDP.

    Args:
        device: The GPU. The fit has seen boards of NVIDIA alone.
        activity: What it does.
        fit: Shares of the TDP.
    """
    shares = (fit.stacked_floor, fit.floor, fit.working, fit.recurrent)
    terms = zip(shares, power_terms(device, activity), strict=True)
    watts = device.tdp_watts * sum(share * term for share, term in terms)
    return Interval(
        value=min(watts, device.tdp_watts),
        low=min(watts, device.tdp_watts) * math.exp(fit.log_low),
        high=min(watts * math.exp(fit.log_high), device.tdp_watts),
    )


# Watts of a virtual processor, idle and at full load, with its share of the server.
# Source: cloud-carbon-coefficients (Apache-2.0, 2023; SPECpower): Skylake, Broadwell and Cascade
# Lake, EPYC of the second and third generation. Later processors are assumed alike.
_VCPU_WATTS = {"Xeon": (0.64, 4.2), "EPYC": (0.45, 2.0), "": (0.45, 4.2)}
# Watts per byte of memory beyond what a virtual processor of those servers has.
# Source: cloud-carbon-footprint (Apache-2.0): 0.392 W per GB; 80 to 130 GB per chip.
_WATTS_PER_BYTE = 0.392e-9
_BYTES_PER_VCPU = 1.75e9
# Energy of the building over that of the machines, as yearly means of providers.
# Source: cloud-carbon-footprint, 2023. The high end is the mean of all data centers (Uptime
# Institute, 2024).
_PUE = {"aws": 1.135, "gcp": 1.10, "azure": 1.185}
_PUE_ENDS = (1.05, 1.56)
_OTHER_PUE = 1.135
# Kilograms of CO2 equivalent per kWh by region.
# Source: cloud-carbon-coefficients, 2023: EPA eGRID 2021 (SERC); Google for its own regions.
GRID_KG_PER_KWH = {
    "us-east-1": 0.415755,
    "eastus": 0.415755,
    "eastus2": 0.415755,
    "us-central1": 0.479,
    "us-east4": 0.383,
}
J_PER_KWH = 3.6e6


def counted_watts(power: MachinePower, counter: str) -> Interval | None:
    """Return the power of some parts of this machine together; None if no counter showed it.

    Args:
        power: What the counters showed.
        counter: Beginning of their names: ``RAPL`` or ``NVML``.
    """
    parts = [part for part in power.parts if part.counter.startswith(counter)]
    if not parts:
        return None
    return Interval(
        value=sum(part.watts for part in parts),
        low=sum(part.low_watts for part in parts),
        high=sum(part.high_watts for part in parts),
    )


def energy_kwh(
    training_ns: Interval,
    machine: Machine,
    boards: Interval | None = None,
    processors: Interval | None = None,
) -> Interval:
    """Return the electricity of a training, that of the building included, in kWh.

    The ends are those of all parts at once, so the interval is wider than 90 %.

    Args:
        training_ns: Time of the training.
        machine: Its machine; one without a provider has no building. The processors of one
            without GPUs are busy; those of another are between idle and busy.
        boards: Power of all its GPUs together, from `board_watts` or measured.
        processors: Measured power of its processors; None to predict it with that of the memory.
    """
    if processors is None:
        idle, full = next(watts for name, watts in _VCPU_WATTS.items() if name in machine.cpu)
        half = (idle + full) / 2
        low, value = (idle, half) if machine.num_gpus else (half, full)
        more_bytes = max(machine.memory_bytes - machine.num_vcpus * _BYTES_PER_VCPU, 0.0)
        processors = Interval(value=value, low=low, high=full).map(
            lambda watts: machine.num_vcpus * watts + more_bytes * _WATTS_PER_BYTE
        )
    watts = processors.plus(boards) if boards else processors
    pue = (_PUE_ENDS[0], _PUE.get(machine.cloud, _OTHER_PUE), _PUE_ENDS[1])
    if not machine.provider:
        pue = (1.0, 1.0, 1.0)
    low, value, high = (
        building * power * (time / NS_PER_S / J_PER_KWH)
        for building, power, time in zip(pue, _ends(watts), _ends(training_ns), strict=True)
    )
    return Interval(value=value, low=low, high=high)


def co2_kg(kwh: Interval, machine: Machine, kg_per_kwh: float | None = None) -> Interval | None:
    """Return the CO2 equivalent of electricity, by the yearly mean of the machine's grid.

    Args:
        kwh: The electricity.
        machine: Its region counts.
        kg_per_kwh: The user's own figure for the grid.

    Returns:
        None if the grid of the region is unknown.
    """
    grid = GRID_KG_PER_KWH.get(machine.region) if kg_per_kwh is None else kg_per_kwh
    return None if grid is None else kwh.times(grid)


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.low, interval.value, interval.high

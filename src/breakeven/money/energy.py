"""Electricity of a training, and the carbon dioxide of generating it."""

from __future__ import annotations

from breakeven.device import DeviceSpec
from breakeven.money.interval import Interval

# Board power over TDP, idle and busy all of the time: low, expected, high.
# Source: 163 epochs on A40, V100 PCIe and Quadro RTX 6000, six workloads (ml-energy/zeus, NSDI'23);
# `python -m lab.energy` fits them and leaves each device out.
FLOOR_SHARE = Interval(value=0.22, low=0.15, high=0.30)
BUSY_SHARE = Interval(value=0.86, low=0.58, high=0.96)
# Watts of a virtual processor at full load, idle and with its share of memory and mainboard left
# out: Cascade Lake 3.97, EPYC Milan 1.87. Source: cloud-carbon-coefficients, SPECpower, 2023.
VCPU_WATTS = Interval(value=2.7, low=1.2, high=4.2)
# Energy of the building over that of the machine: AWS 1.14, Google 1.10, Azure 1.19 (published
# yearly means, as cloud-carbon-footprint has them); 1.56 is the mean of all data centres (Uptime
# Institute, 2024).
PUE = Interval(value=1.14, low=1.08, high=1.56)
# Kilograms of CO2 equivalent per kWh by region.
# Source: cloud-carbon-coefficients (Apache-2.0), 2023: EPA eGRID 2021; Google for its own regions.
GRID_KG_PER_KWH = {
    "us-east-1": 0.416,
    "eastus": 0.416,
    "eastus2": 0.416,
    "us-central1": 0.479,
    "us-east4": 0.383,
}
J_PER_KWH = 3.6e6


def board_watts(device: DeviceSpec, busy_fraction: float) -> Interval:
    """Return the mean power of a GPU's board during a step."""
    low, value, high = (
        device.tdp_watts * (floor + (busy - floor) * busy_fraction)
        for floor, busy in zip(_ends(FLOOR_SHARE), _ends(BUSY_SHARE), strict=True)
    )
    return Interval(value=value, low=low, high=high)


def energy_kwh(
    time_s: Interval, *, num_vcpus: float, boards_watts: Interval | None = None
) -> Interval:
    """Return the electricity of a training, that of the building included, in kWh."""
    gpu = boards_watts or Interval(value=0.0, low=0.0, high=0.0)
    low, value, high = (
        pue * (num_vcpus * vcpu + board) * time / J_PER_KWH
        for pue, vcpu, board, time in zip(*map(_ends, (PUE, VCPU_WATTS, gpu, time_s)), strict=True)
    )
    return Interval(value=value, low=low, high=high)


def co2_kg(energy: Interval, region: str) -> Interval | None:
    """Return emissions; None if the region's grid is unknown."""
    grid = GRID_KG_PER_KWH.get(region)
    return None if grid is None else energy.map(lambda kwh: grid * kwh)


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.low, interval.value, interval.high

"""Figures of a GPU that the catalogue does not know, from what was measured of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch

from breakeven.calibrate.gpu.machine import properties_of
from breakeven.cost import CalibratedMachine, Family, Kernel
from breakeven.device import DeviceSpec, Precision
from breakeven.errors import BreakevenError

# Which launches are like which, by NVIDIA's compute capability: the first that is not above it.
_CAPABILITIES = (
    ((10, 0), "blackwell"), ((9, 0), "hopper"), ((8, 9), "ada"), ((8, 0), "ampere"),
    ((7, 5), "turing"), ((7, 0), "volta"), ((6, 0), "pascal"), ((5, 0), "maxwell"),
    ((0, 0), "kepler"),
)  # fmt: skip
_VENDORS = {"mps": ("apple", "apple"), "xpu": ("intel", "xe")}
# What the best of a few sizes reaches of a datasheet's rate, as GPUs of the catalogue do: products
# 0.8 to 0.95, streams 0.85 to 0.93. What is off here the efficiencies make up for.
_BEST_FRACTION = 0.9
_CLOCK_HZ = 1.5e9
_NUM_SMS = 32
_CACHE_BYTES = 4 * 2**20
_MEMORY_BYTES = 8 * 2**30
# PCIe 4.0 x16, where copies were not measured.
_LINK_BYTES_PER_S = 31.5e9
_LINK_FRACTION = 0.78
_NEVER_SLOWS = 1_000.0  # W


def own_spec(
    device: torch.device,
    machine: CalibratedMachine,
    timed: Iterable[tuple[Kernel, float]],
    *,
    copy_bytes_per_s: float | None,
) -> DeviceSpec:
    """Return the figures of a GPU of which no datasheet is known.

    Args:
        device: The GPU.
        machine: Where it is.
        timed: Kernels, and how long each took, in nanoseconds.
        copy_bytes_per_s: Rate of long copies to it, where known.

    Raises:
        BreakevenError: Nothing was measured that tells its rates.
    """
    rates: dict[Precision, float] = {}
    stream = 0.0
    for kernel, time_ns in timed:
        if kernel.family is Family.GEMM:
            rate = 1e9 * kernel.flop / time_ns
            rates[kernel.precision] = max(rates.get(kernel.precision, 0.0), rate)
        stream = max(stream, 1e9 * kernel.num_bytes / time_ns)
    if Precision.FP32 not in rates or not stream:
        raise BreakevenError(
            f"too little was measured of {machine.gpu}, which is not in the catalogue",
            hint="run breakeven calibrate again: it goes on where it ended",
        )
    vendor, generation = _generation(device)
    facts = properties_of(device)
    link = _LINK_BYTES_PER_S if copy_bytes_per_s is None else copy_bytes_per_s / _LINK_FRACTION
    if rates.get(Precision.TF32, 0.0) < 1.2 * rates[Precision.FP32]:
        rates.pop(Precision.TF32, None)  # the switch does nothing here
    return DeviceSpec(
        id=re.sub(r"[^a-z0-9]+", "-", machine.gpu.casefold()).strip("-"),
        name=machine.gpu,
        vendor=vendor,
        market="measured",
        architecture=generation,
        num_sms=int(_first(facts, "multi_processor_count", "gpu_subslice_count") or _NUM_SMS),
        clock_hz=1e3 * _first(facts, "clock_rate") or _CLOCK_HZ,
        peak_flop_per_s={one: rate / _BEST_FRACTION for one, rate in rates.items()},
        memory_bytes=_memory_bytes(device),
        memory_bytes_per_s=stream / _BEST_FRACTION,
        l2_bytes=_first(facts, "L2_cache_size", "last_level_cache_size") or _CACHE_BYTES,
        link_bytes_per_s=link,
        launch_generation=generation,
        release_year=int(machine.date[:4]),
        tdp_watts=_NEVER_SLOWS,
        sources=(f"measured by breakeven calibrate on {machine.date}",),
        notes="no datasheet: rates are what it reached, over 0.9",
    )


def _first(facts: Any, *names: str) -> float:
    """Return the first of the figures that a backend tells; 0 where it tells none."""
    return next((float(value) for name in names if (value := getattr(facts, name, 0))), 0.0)


def _memory_bytes(device: torch.device) -> float:
    if device.type == "mps":
        return float(torch.mps.recommended_max_memory())
    return _first(properties_of(device), "total_memory") or _MEMORY_BYTES


def _generation(device: torch.device) -> tuple[str, str]:
    if device.type in _VENDORS:
        return _VENDORS[device.type]
    facts = properties_of(device)
    if torch.version.hip:
        is_matrix = str(getattr(facts, "gcnArchName", "")).startswith("gfx9")
        return "amd", "cdna" if is_matrix else "rdna"
    capability = (int(getattr(facts, "major", 8)), int(getattr(facts, "minor", 0)))
    return "nvidia", next(name for least, name in _CAPABILITIES if capability >= least)

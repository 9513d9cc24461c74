"""Efficiencies: the fraction of its datasheet that a device reaches, by kernel family.

A calibrated device has its own. Other devices get theirs from the calibrated ones. A table of
proxies names the family that replaces a family without measurements.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any, TypeVar

import msgspec
import numpy as np

from breakeven.cost.implementations import is_in_one_kernel, rate_of
from breakeven.cost.kernel import TILE_SET_NAMES, Arithmetic, Family, Kernel, TileSet
from breakeven.cost.roofline import EfficiencyArrays, Floats
from breakeven.device import DeviceSpec, generations_between

TABLE_VERSION = 2


class FamilyEfficiency(msgspec.Struct, frozen=True, kw_only=True):
    """The efficiency of a device in one family of kernels.

    Args:
        family: Family of the kernels.
        variant: Finer key, as in ``Kernel.variant``; empty for the common case.
        arithmetic: ``tensor`` if matrix units compute, else ``vector``.
        compute_fraction: Fraction of the peak, before the losses below. The peak is the
            datasheet's, times the fraction that the board's power allows (`sustained_fraction`).
        tile_loss: A tile of m × n results reaches 1 / (1 + tile_loss × (1/m + 1/n)) of it.
        prologue_k: Cost of filling a tile's pipeline, in steps of the contraction; for recurrent
            layers the latency of a time step, in hundreds of cycles.
        tiles: Tiles that the library chooses from: those whose shorter side is at least a number,
            or a single one, rows along m × columns along n.
        memory_fraction: Fraction of the DRAM bandwidth.
        num_rows: Measurements behind the fit.
        median_error_fraction: Median of |predicted / measured - 1| over them.
        log_sigma: Standard deviation of log(predicted / measured) that covers 90 %.
    """

    family: Family
    arithmetic: Arithmetic
    compute_fraction: float
    tile_loss: float
    prologue_k: float
    tiles: TileSet
    memory_fraction: float
    num_rows: int
    median_error_fraction: float
    log_sigma: float
    variant: str = ""


class DeviceEfficiency(msgspec.Struct, frozen=True, kw_only=True):
    """The calibration of one device.

    Args:
        device: Its id in the catalogue.
        chip: Copied from the catalogue, as is the next field; both determine its neighbours.
        launch_generation: Its generation.
        sustained_fraction: Fraction of the boost clock that its power sustains. A board that clocks
            down weighs less as a reference, since its clock hides its other limits.
        families: One entry for each family, variant and arithmetic that its tables cover.
        source: Tables that its rows come from.
    """

    device: str
    chip: str
    launch_generation: str
    sustained_fraction: float
    families: tuple[FamilyEfficiency, ...]
    source: str


class HeldOutError(msgspec.Struct, frozen=True, kw_only=True):
    """Error on devices without rows in the fit, pooled over devices.

    Args:
        family: Family of the kernels.
        variant: As in `FamilyEfficiency`.
        arithmetic: As in `FamilyEfficiency`.
        is_other_line: Whether no reference device was of the device's vendor.
        num_devices: Devices left out in turn.
        num_rows: Rows predicted.
        median_error_fraction: Median of |predicted / measured - 1|.
        p90_error_fraction: 90th percentile of the same.
        log_sigma: Standard deviation of log(predicted / measured) that covers 90 %.
    """

    family: Family
    arithmetic: Arithmetic
    is_other_line: bool
    num_devices: int
    num_rows: int
    median_error_fraction: float
    p90_error_fraction: float
    log_sigma: float
    variant: str = ""


class EfficiencyTable(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """The calibrated devices, and the errors of predictions for other devices.

    Args:
        version: Version of this format.
        provenance: Origin of the table.
        devices: Calibrated devices.
        held_out: Leave-one-device-out errors.
    """

    version: int
    provenance: str
    devices: tuple[DeviceEfficiency, ...]
    held_out: tuple[HeldOutError, ...]


_Table = TypeVar("_Table")


def read_shipped(package: str, name: str, kind: type[_Table], version: int) -> _Table:
    """Return a fitted table that ships with the package.

    Args:
        package: Package of the file.
        name: Name of the file.
        kind: Type of the table, which has a ``version``.
        version: Version that this code reads.

    Raises:
        ValueError: The file has another version.
    """
    text = resources.files(package).joinpath(name).read_bytes()
    table: Any = msgspec.json.decode(text, type=kind)
    if table.version != version:
        raise ValueError(f"{name} has version {table.version}, expected {version}")
    return table


@cache
def calibration_digest() -> str:
    """Return a digest of the fitted tables from which steps on GPUs are predicted."""
    folder = resources.files("breakeven.cost")
    tables = (folder.joinpath(name) for name in ("efficiency.json", "step_effects.json"))
    return hashlib.sha256(b"".join(table.read_bytes() for table in tables)).hexdigest()[:12]


@cache
def load_efficiencies() -> EfficiencyTable:
    """Return the table that ships with the package."""
    return read_shipped("breakeven.cost", "efficiency.json", EfficiencyTable, TABLE_VERSION)


# Each generation between device and reference divides the reference's weight by three; the weight
# is also lower if power limits the reference's clock. Chosen by leaving each chip of the op tables
# out in turn: the mean over families of the median |log(predicted / measured)| is 0.195 (of the
# 90th percentile 0.563). It is 0.193 to 0.207 (0.562 to 0.576) with a half to a thirtieth per
# generation and powers of 0 to 4 of the sustained fraction, so the choice matters little.
_WEIGHT_PER_GENERATION = 1 / 3
# Recurrent layers depend on the library: cuDNN 7.6 needs half the latency of versions 5 and 6 for
# a time step (V100 against M40, P100, GTX 1080 Ti), so older tables hardly inform newer devices.
_RECURRENT_WEIGHT_PER_GENERATION = 1 / 10
# If a vendor has no reference at all, those of other vendors count, at this distance.
_OTHER_VENDOR_DISTANCE = 4
# Boards with the same chip differ in clock, power and memory, which are on the datasheet. They
# count as this much nearer than others of their generation, with the reference's own error.
_SAME_CHIP_DISTANCE = -2
_SAME_CHIP_SIGMA = 0.10
# Additional error: for each generation to the nearest reference; and across vendors, on top of the
# error seen on old AMD devices, whose libraries differ from Apple's and Intel's.
_SIGMA_PER_GENERATION = 0.06
_OTHER_VENDOR_SIGMA = 0.40
# Fraction of the variance of log(predicted / measured) on left-out devices that lies between
# devices and is shared by all kernels of a family; the rest lies between sizes. Source: the tables
# behind the efficiencies, 13 devices left out in turn: 0.15 to 0.71 by family, median 0.38 of 18.
# The mean errors of one device's families mostly have the same sign. On devices with their own fit
# it is 0.02 to 0.04, hence none.
_SHARED_VARIANCE_FRACTION = 0.4
# Libraries and drivers of other years than the tables'. The same step on the same GPU took 1.18 to
# 1.25 times as long under torch 1.7 as under 1.13 (Lambda Labs, ResNet-50 and BERT on an A100
# PCIe). That is a difference of 0.2 between two draws, and less as most tables lie between.
_LIBRARY_SIGMA = 0.10
# Fraction of the bandwidth that attention's operand streams reach, as for other streams.
_ATTENTION_MEMORY_FRACTION = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferredEfficiency:
    """Efficiencies of devices; the sigmas have shape (1, num_devices), as in `KernelTimes`."""

    arrays: EfficiencyArrays
    log_sigma: Floats
    shared_log_sigma: Floats


def transferred_efficiency(
    table: EfficiencyTable,
    devices: Sequence[DeviceSpec],
    family: Family,
    variant: str,
    arithmetic: Arithmetic,
) -> TransferredEfficiency:
    """Return the efficiency of ``devices`` in one family.

    A calibrated device has its own. Another device gets the geometric mean of the calibrated ones,
    weighted by the generations between them, with the leave-one-device-out error. A board with
    the chip of a calibrated one depends almost only on that one.

    Raises:
        ValueError: No device of the table has the family or a proxy of it.
    """
    proxy, references = _find_references(table, family, variant, arithmetic)
    if family is Family.ATTENTION and arithmetic == "tensor" and proxy.family is not family:
        return _assumed_attention(devices, variant)
    counted = [_weighted(table, device, references) for device in devices]
    weights = np.array([weight / weight.sum() for weight, _, _ in counted])
    size_sigma = np.array([[sigma for _, sigma, _ in counted]])
    # All kernels of the family share the error of a proxy's factor.
    shared_log_sigma = np.hypot([[sigma for _, _, sigma in counted]], proxy.log_sigma)
    entries = [entry for _, entry in references]

    def mean(figures: list[float]) -> Floats:
        return np.exp(weights @ np.log(figures))[np.newaxis, :]

    # Tile sets cannot be averaged: take the nearest reference's.
    tile_sets = np.array([TILE_SET_NAMES.index(entry.tiles) for entry in entries])
    return TransferredEfficiency(
        arrays=EfficiencyArrays(
            compute_fraction=mean([entry.compute_fraction for entry in entries]) * proxy.factor,
            # Figures that may be 0 are raised by one.
            tile_loss=mean([1 + entry.tile_loss for entry in entries]) - 1.0,
            prologue_k=mean([1 + entry.prologue_k for entry in entries]) - 1.0,
            tile_set=tile_sets[weights.argmax(axis=1)][np.newaxis, :],
            memory_fraction=mean([entry.memory_fraction for entry in entries]) * proxy.factor,
        ),
        log_sigma=np.hypot(size_sigma, shared_log_sigma),
        shared_log_sigma=shared_log_sigma,
    )


def _weighted(
    table: EfficiencyTable, device: DeviceSpec, references: Sequence[_Reference]
) -> tuple[Floats, float, float]:
    """Return each reference's weight for a device, and the sigmas of the result.

    The first sigma differs between sizes of a kernel; all kernels share the second.
    """
    for index, (reference, entry) in enumerate(references):
        if reference.device == device.id:
            return np.eye(len(references))[index], entry.log_sigma, _LIBRARY_SIGMA
    entry = references[0][1]
    is_recurrent = entry.family is Family.RECURRENT
    per_generation = _RECURRENT_WEIGHT_PER_GENERATION if is_recurrent else _WEIGHT_PER_GENERATION
    # Generations between device and reference; None for another vendor, whose libraries differ.
    distances = [
        _SAME_CHIP_DISTANCE
        if device.chip and device.chip == reference.chip
        else generations_between(device.launch_generation, reference.launch_generation)
        for reference, _ in references
    ]
    is_other_line = all(distance is None for distance in distances)
    weights, nearest, least = np.zeros(len(references)), entry, math.inf
    for index, (distance, (reference, own)) in enumerate(zip(distances, references, strict=True)):
        distance = _OTHER_VENDOR_DISTANCE if is_other_line else distance
        if distance is not None:
            weights[index] = reference.sustained_fraction * per_generation**distance
            nearest, least = (own, distance) if distance < least else (nearest, least)
    if least == _SAME_CHIP_DISTANCE:
        return weights, nearest.log_sigma, math.hypot(_LIBRARY_SIGMA, _SAME_CHIP_SIGMA)
    # The error on held-out devices; if none was held out, twice the error of the fit.
    sigmas = [
        error.log_sigma
        for error in table.held_out
        if (error.family, error.variant, error.arithmetic)
        == (entry.family, entry.variant, entry.arithmetic)
        and (is_other_line or not error.is_other_line)
    ]
    sigma = max(sigmas, default=2 * entry.log_sigma)
    sigma = float(np.hypot(sigma, _OTHER_VENDOR_SIGMA)) if is_other_line else sigma
    shared_sigma = math.hypot(
        sigma * math.sqrt(_SHARED_VARIANCE_FRACTION), _SIGMA_PER_GENERATION * least, _LIBRARY_SIGMA
    )
    return weights, sigma * math.sqrt(1.0 - _SHARED_VARIANCE_FRACTION), shared_sigma


def _assumed_attention(devices: Sequence[DeviceSpec], variant: str) -> TransferredEfficiency:
    """Return the efficiency of fused attention from published figures; no table times it."""
    rates = [rate_of(device, variant) for device in devices]
    # All kernels of an implementation share its unknown error.
    sigma = np.hypot([[rate.log_sigma for rate in rates]], _LIBRARY_SIGMA)
    return TransferredEfficiency(
        arrays=EfficiencyArrays(
            compute_fraction=np.array([[rate.compute_fraction for rate in rates]]),
            tile_loss=np.zeros_like(sigma),
            prologue_k=np.array([[float(rate.prologue_keys) for rate in rates]]),
            # Fused attention has fixed blocks.
            tile_set=np.zeros(sigma.shape, dtype=np.intp),
            memory_fraction=np.full_like(sigma, _ATTENTION_MEMORY_FRACTION),
        ),
        log_sigma=sigma,
        shared_log_sigma=sigma,
    )


_Reference = tuple[DeviceEfficiency, FamilyEfficiency]


@lru_cache(maxsize=1024)
def _find_references(
    table: EfficiencyTable, family: Family, variant: str, arithmetic: Arithmetic
) -> tuple[Proxy, list[_Reference]]:
    """Return the proxy of a family and the devices that were measured in it."""
    for proxy in stand_ins(family, variant):
        key = (proxy.family, proxy.variant, arithmetic)
        references = [
            (device, entry)
            for device in table.devices
            for entry in device.families
            if (entry.family, entry.variant, entry.arithmetic) == key
        ]
        if references:
            return proxy, references
    raise ValueError(f"no calibration for {family} ({arithmetic}), nor for a proxy of it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """The replacement of a family or variant without measurements.

    Args:
        family: Family that replaces it.
        factor: Efficiency relative to that family.
        log_sigma: Standard deviation of the logarithm of the factor.
        variant: Variant of that family.
    """

    family: Family
    factor: float
    log_sigma: float
    variant: str = ""


# Each proxy shares its family's limit. The factors are judgement, not calibration, and log_sigma
# reflects that.
PROXIES = {
    # cuDNN computes each channel separately, without a matrix product: traffic is the limit.
    (Family.CONVOLUTION, "depthwise"): Proxy(family=Family.ELEMENTWISE, factor=0.5, log_sigma=0.50),
    # A time step waits as measured for one layer on one GPU, see `implementations`; the rest is as
    # for other layers.
    (Family.RECURRENT, "small"): Proxy(family=Family.RECURRENT, factor=1.0, log_sigma=0.40),
    (Family.BATCHED_GEMM, ""): Proxy(family=Family.GEMM, factor=0.9, log_sigma=0.20),
    (Family.CONVOLUTION, ""): Proxy(family=Family.GEMM, factor=0.8, log_sigma=0.35),
    (Family.RECURRENT, ""): Proxy(family=Family.GEMM, factor=0.7, log_sigma=0.40),
    (Family.ATTENTION, ""): Proxy(family=Family.BATCHED_GEMM, factor=0.7, log_sigma=0.40),
    (Family.LINALG, ""): Proxy(family=Family.GEMM, factor=0.1, log_sigma=1.00),
    (Family.NORMALIZATION, ""): Proxy(family=Family.ELEMENTWISE, factor=0.8, log_sigma=0.20),
    (Family.SOFTMAX, ""): Proxy(family=Family.ELEMENTWISE, factor=0.8, log_sigma=0.20),
    (Family.REDUCTION, ""): Proxy(family=Family.ELEMENTWISE, factor=0.8, log_sigma=0.25),
    (Family.POOLING, ""): Proxy(family=Family.ELEMENTWISE, factor=0.7, log_sigma=0.35),
    (Family.GATHER, ""): Proxy(family=Family.ELEMENTWISE, factor=0.5, log_sigma=0.50),
    (Family.SORT, ""): Proxy(family=Family.ELEMENTWISE, factor=0.1, log_sigma=0.80),
}

# Work that no operator benchmark and no whole step measures, by family or variant.
_UNTIMED = {
    Family.LINALG: "factorizations and solves",
    Family.SORT: "sorting and selection",
    "scatter": "scattering",
    "sparse": "sparse products",
    "fft": "Fourier transforms",
    "ctc": "CTC losses",
    "group": "group norms",
}
# A factor of three either way, at 90 %.
UNTIMED_LOG_SIGMA = math.log(3.0) / 1.645


def untimed_kind(kernel: Kernel) -> str:
    """Return the kind of a kernel's work if it was never measured; otherwise an empty string."""
    variant = kernel.variant.removesuffix("_backward")
    return _UNTIMED.get(kernel.family) or _UNTIMED.get(variant, "")


def calibrated_variant(family: Family, variant: str) -> str:
    """Return the variant under which rows of ``variant`` are pooled.

    All kinds of recurrent layers run their time steps alike, and none has many rows. Winograd's
    gain is in the algorithms of a convolution; its tiles and rates are those of other
    convolutions. The same holds for grouped products.
    """
    if family is Family.RECURRENT:
        return "backward" if variant.endswith("backward") else ""
    if family is Family.CONVOLUTION:
        return variant.removeprefix("winograd").removeprefix("grouped").removeprefix("_")
    return variant


def stand_ins(family: Family, variant: str) -> Iterator[Proxy]:
    """Yield the proxies of a family, the nearest first, which is the family itself."""
    factor, variance = 1.0, 0.0
    if family is Family.CONVOLUTION and variant.startswith("depthwise"):
        proxy, variant = PROXIES[family, "depthwise"], ""
        family, factor, variance = proxy.family, proxy.factor, proxy.log_sigma**2
    elif is_in_one_kernel(variant):
        variance = PROXIES[Family.RECURRENT, "small"].log_sigma ** 2
    variant = calibrated_variant(family, variant)
    while True:
        # A transposed convolution is the input gradient of another convolution.
        direct = variant.replace("transposed", "backward_input")
        for near in dict.fromkeys((variant, direct, "")):
            yield Proxy(family=family, variant=near, factor=factor, log_sigma=variance**0.5)
        proxy, variant = PROXIES.get((family, "")), ""
        if proxy is None:
            return
        family, factor = proxy.family, factor * proxy.factor
        variance += proxy.log_sigma**2

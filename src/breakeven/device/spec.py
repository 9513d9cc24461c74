"""A machine's datasheet, and what it has in common with its generation."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

_Positive = Annotated[float, msgspec.Meta(gt=0)]


class Precision(StrEnum):
    """Arithmetic of a kernel: the dtype, and for fp32 whether tensor cores may round it to TF32."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, from its datasheet. Rates are dense (no structured sparsity).

    Args:
        id: Stable lower-case identifier: ``a100-sxm4-80gb``.
        name: What people call it: ``A100 SXM4 80GB``.
        vendor: ``nvidia``, ``amd``, ``apple`` or ``intel``.
        market: ``consumer``, ``workstation``, ``datacenter``, ``laptop`` or ``integrated``.
        architecture: ``Ampere``, ``CDNA2``, ``M1``, ``Xe-HPG``, ...
        chip: ``GA100``, where the vendor names it.
        num_sms: Streaming multiprocessors, compute units or GPU cores.
        clock_hz: Boost clock.
        peak_flop_per_s: Dense peak by precision; a fused multiply-add is 2 FLOP. A precision
            that the device lacks has no entry.
        memory_bytes: Capacity.
        memory_bytes_per_s: DRAM bandwidth.
        l2_bytes: Last-level cache on the device.
        link_bytes_per_s: Host link per direction: PCIe generation × lanes, NVLink-C2C, or the
            unified memory's own bandwidth.
        peer_bytes_per_s: NVLink or Infinity Fabric, sum of both directions; 0 where there is none.
        launch_generation: Which launch latencies apply: ``kepler`` … ``blackwell``, ``cdna``,
            ``apple``, ``xe``; the id of its `Generation`.
        release_year: Year of release.
        tdp_watts: Board power.
        aliases: Other names that people use.
        sources: Where the figures are from, one per line of the datasheet or its URL.
        notes: Peculiarities that a reader of a figure should know.
    """

    id: str
    name: str
    vendor: str
    market: str
    architecture: str
    num_sms: int
    clock_hz: float
    peak_flop_per_s: dict[Precision, float]
    memory_bytes: float
    memory_bytes_per_s: float
    l2_bytes: float
    link_bytes_per_s: float
    launch_generation: str
    release_year: int
    tdp_watts: float
    sources: tuple[str, ...]
    chip: str = ""
    peer_bytes_per_s: float = 0.0
    aliases: tuple[str, ...] = ()
    notes: str = ""

    def has_precision(self, precision: Precision) -> bool:
        """Return whether the datasheet gives a rate for ``precision``."""
        return precision in self.peak_flop_per_s


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What GPUs of one generation have in common. Times in nanoseconds.

    Args:
        id: Stable lower-case identifier: ``ampere``.
        vendor: As in `DeviceSpec`; the generations of a vendor descend from each other.
        launch_ns: Host time of one kernel launch, beyond the operator's dispatch.
        latency_ns: From the enqueuing of a kernel to its start on an idle device.
        gap_ns: Smallest time between the end of a kernel and the start of the next on a stream.
        sync_ns: Host time of a stream sync or a blocked read once the device is idle.
        floor_ns: Shortest time that any kernel occupies a device.
        log_sigma: Standard deviation of the logarithm of these times between hosts and drivers.
        sources: Where the figures are from.
        watts_per_flop_per_s: Board power that keeps the boost clock under fp32 load, per fp32
            FLOP/s; None where every board is taken to have enough.
        watts_per_matrix_flop_per_s: The same of fp16 on matrix units.
        has_consumer_peer_access: Whether consumer cards access each other's memory over PCIe.
        fabric_boards: Parts of the ids of devices with a fabric that joins all of a machine.
    """

    id: str
    vendor: str
    launch_ns: _Positive
    latency_ns: _Positive
    gap_ns: _Positive
    sync_ns: _Positive
    floor_ns: _Positive
    log_sigma: _Positive
    sources: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    watts_per_flop_per_s: _Positive | None = None
    watts_per_matrix_flop_per_s: _Positive | None = None
    has_consumer_peer_access: bool = True
    fabric_boards: tuple[str, ...] = ()

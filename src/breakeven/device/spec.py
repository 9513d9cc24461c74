"""A machine's datasheet."""

from __future__ import annotations

from enum import StrEnum

import msgspec


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
            ``apple``, ``xe``.
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
